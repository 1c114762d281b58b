"""Compare the gradient of a router's balancing loss for each sequence, with the loss per token, with a formula."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matrix.kit import router

if TYPE_CHECKING:
    from matrix.kit.rank import Rank


class DividedByMicroBatch(AssertionError):
    """The gradient is divided by the size of the micro-batch."""


def balance(rank: Rank, *, batch: int, per_token: bool = True) -> float:
    """Return the ratio of both gradients after a step of upstream's on one rank, with `batch` equal sequences."""
    return router.judge(
        router.step(rank, per_token=per_token, batch=batch, kind="seq_aux_loss"), 1 / batch, DividedByMicroBatch
    )
