"""The law of the mask accepts the measurements that it explains, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matrix.ground.catalog.folders import load_module

LAW = load_module(Path(__file__).parent, "law")
LENGTHS = (4096, 8192, 16384)


def test_a_law_that_holds_predicts_128k() -> None:
    answer = LAW.law({length: 8 * length**2 for length in LENGTHS})
    assert answer == {
        "points": [[length, 8 * length**2] for length in LENGTHS],
        "factor": 8.0,
        "predicted": {"131072": 2**37},
    }


@settings(deadline=None)
@given(st.lists(st.floats(0.981, 1.019), min_size=3, max_size=3))
def test_measurements_within_2_percent_hold(noise: list[float]) -> None:
    answer = LAW.law({length: round(8 * length**2 * part) for length, part in zip(LENGTHS, noise, strict=True)})
    assert answer["predicted"]["131072"] == pytest.approx(2**37, rel=0.02)


@settings(deadline=None)
@given(st.sampled_from(LENGTHS), st.one_of(st.floats(0.1, 0.979), st.floats(1.021, 4)))
def test_one_measurement_off_the_law_breaks_it(odd: int, part: float) -> None:
    """A release that makes a smaller mask, or another copy of it, is no longer explained by this."""
    with pytest.raises(LAW.LawBroken, match=rf"the peak at {odd} tokens is .* not 8 \* S\^2"):
        LAW.law({length: round(8 * length**2 * (part if length == odd else 1)) for length in LENGTHS})
