"""Compare the gradient of a router's balancing loss for each sequence, with the loss per token, with a formula."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matrix.kit import router

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

TOLERANCE = 1e-4  # relative, in float32


class DividedByMicroBatch(AssertionError):
    """The gradient is divided by the size of the micro-batch."""


class BalanceWrong(AssertionError):
    """The gradient is wrong in another way."""


def balance(rank: Rank, *, batch: int, per_token: bool = True) -> float:
    """Return the ratio of both gradients after a step of upstream's on one rank, with `batch` equal sequences."""
    factor = router.step(rank, per_token=per_token, batch=batch, kind="seq_aux_loss")
    figures = f"the gradient is {factor:.6f} of that of the formula"
    if abs(factor - 1) < TOLERANCE:
        return factor
    if abs(factor * batch - 1) < TOLERANCE:
        raise DividedByMicroBatch(figures)
    raise BalanceWrong(figures)
