"""Compare a training step of experts with biases under a layout with the same step on one rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matrix.kit.parity.reproduce import deviation

if TYPE_CHECKING:
    from matrix.kit.rank import Rank


def bias(rank: Rank, **point: Any) -> None:
    """Raise ParityDeviation where the numbers of a point (factors.toml) are not those of one rank."""
    deviation(rank, **point)
