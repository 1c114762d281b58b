"""Compare the gradient of a router's balancing loss over the global batch with a formula."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matrix.kit import router

if TYPE_CHECKING:
    from matrix.kit.rank import Rank


class DividedByRanks(AssertionError):
    """The gradient is divided by the number of ranks."""


def balance(rank: Rank, *, kind: str = "global_aux_loss") -> float:
    """Return the ratio of both gradients after a step of upstream's; each data parallel rank has an equal sequence.

    The share of tokens of each expert is that of one rank: the loss over the global batch is that of a micro-batch.
    """
    return router.judge(router.step(rank, per_token=False, kind=kind), 1 / rank.world_size, DividedByRanks)
