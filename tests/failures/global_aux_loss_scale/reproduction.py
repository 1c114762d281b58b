"""Compare the gradient of a router's balancing loss over the global batch with a formula."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matrix.kit import router

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

TOLERANCE = 1e-4  # relative, in float32


class DividedByRanks(AssertionError):
    """The gradient is divided by the number of ranks."""


class BalanceWrong(AssertionError):
    """The gradient is wrong in another way."""


def balance(rank: Rank, *, kind: str = "global_aux_loss") -> float:
    """Return the ratio of both gradients after a step of upstream's; each data parallel rank has an equal sequence.

    The share of tokens of each expert is then that of one rank: the loss over the global batch is that of a micro-batch.
    """
    factor = router.step(rank, per_token=False, kind=kind)
    figures = f"the gradient is {factor:.6f} of that of the formula"
    if abs(factor - 1) < TOLERANCE:
        return factor
    if abs(factor * rank.world_size - 1) < TOLERANCE:
        raise DividedByRanks(figures)
    raise BalanceWrong(figures)
