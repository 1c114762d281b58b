"""The law of the attention mask: a first sample of S tokens takes 8*S^2 bytes at its peak, of which S^2 stay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SHORT = 512  # warms up
LONG = 131072  # the report's
PER_TOKEN_PAIR = 8  # bytes at the peak: two float32
KEPT_PER_TOKEN_PAIR = 1  # bytes that stay: the mask as bool, which the dataset keeps for its next samples
PEAK_TOLERANCE = 0.02


class LawBroken(AssertionError):
    """A measurement contradicts the law: the explanation of the failure is wrong in this cell."""


def law(measured: Mapping[int, int]) -> dict[str, Any]:
    """Return the points (S, bytes), the fitted factor, and its prediction for 131072. Raises LawBroken."""
    for length, bytes_ in measured.items():
        factor = bytes_ / length**2
        if abs(factor / PER_TOKEN_PAIR - 1) > PEAK_TOLERANCE:
            raise LawBroken(f"the peak at {length} tokens is {factor:.3f} * S^2 bytes, not {PER_TOKEN_PAIR} * S^2")
    # least squares of bytes = factor * S^2
    factor = sum(length**2 * bytes_ for length, bytes_ in measured.items()) / sum(length**4 for length in measured)
    points = [[length, bytes_] for length, bytes_ in measured.items()]
    return {"points": points, "factor": round(factor, 4), "predicted": {str(LONG): round(factor * LONG**2)}}
