"""Compare the gradient of a router's load balancing loss, with the loss per token, with a formula."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matrix.kit import router

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

TOLERANCE = 1e-4  # relative, in float32


class DividedByTokens(AssertionError):
    """The gradient is divided by the number of tokens once more."""


class BalanceWrong(AssertionError):
    """The gradient is wrong in another way."""


def balance(rank: Rank, *, per_token: bool) -> float:
    """Return the ratio of both gradients after a step of upstream's on one rank."""
    factor = router.step(rank, per_token=per_token)
    figures = f"the gradient is {factor:.6f} of that of the formula"
    if abs(factor * router.TOKENS - 1) < TOLERANCE:
        raise DividedByTokens(figures)
    if not abs(factor - 1) < TOLERANCE:
        raise BalanceWrong(figures)
    return factor
