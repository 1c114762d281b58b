"""Compare the gradient of a router's load balancing loss, with the loss per token, with a formula."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matrix.kit import router

if TYPE_CHECKING:
    from matrix.kit.rank import Rank


class DividedByTokens(AssertionError):
    """The gradient is divided by the number of tokens once more."""


def balance(rank: Rank, *, per_token: bool) -> float:
    """Return the ratio of both gradients after a step of upstream's on one rank."""
    return router.judge(router.step(rank, per_token=per_token), 1 / router.TOKENS, DividedByTokens)
