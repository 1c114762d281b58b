"""The chart of a measured law."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matrix.ground.catalog.folders import load_module

chart = load_module(Path(__file__).parent, "chart")
Law, law_of, picture, plot = chart.Law, chart.law_of, chart.picture, chart.plot
VALUE = {"points": [[4096, 8 * 4096**2], [16384, 8 * 16384**2]], "factor": 8.0, "host": 2**35}


def test_a_law_is_read_from_the_ranks_values() -> None:
    law = law_of([("tp2", None), ("peak", VALUE)])
    assert law is not None
    assert [(tokens, bytes_) for tokens, bytes_, _ in law.points] == [(4096, 2**27), (16384, 2**31)]
    assert (law.factor, law.host) == (8.0, 2**35)


def test_points_of_all_cases_make_one_curve() -> None:
    low, high = ({"points": [[1024, factor * 1024**2]]} for factor in (7, 9))
    law = law_of([("peak", low), ("peak", high)])
    assert law is not None
    assert (len(law.points), law.factor) == (2, 8.0)


@pytest.mark.parametrize(
    "value",
    [
        None,
        7,
        "points",
        {},
        {"points": 7},
        {"points": "<b>"},
        {"points": [7, [1], [1, 2, 3], ["<b>", 1], [0, 1], [-1, 1], [True, 1], [1.5, 2], [10**30, 1]]},
    ],
)
def test_malformed_values_are_left_out(value: Any) -> None:
    assert law_of([("peak", value)]) is None


def test_each_point_is_a_circle_with_escaped_title() -> None:
    drawn = plot(Law(((4096, 2**27, "peak <b>"), (16384, 2**31, "peak")), 8.0, 0))
    assert len(re.findall("<circle", drawn)) == 2
    assert "64k: 32 GiB" in drawn
    assert "128k: 128 GiB" in drawn
    assert "peak &lt;b&gt;" in drawn
    assert 'class="host"' not in drawn


def test_a_host_is_a_line_with_its_length() -> None:
    """A host of 32 GiB: 65536 tokens for one process, a quarter for each of 16."""
    drawn = plot(Law(((4096, 2**27, "peak"),), 8.0, 2**35))
    assert drawn.count('class="host"') == 2
    assert "This host, 32 GiB: one process may make 65536 tokens" in drawn
    assert "each of 16 processes may make 16384 tokens" in drawn


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 2**62), st.integers(1, 2**62)), min_size=1), st.integers(0, 2**62))
def test_every_point_stays_inside_the_chart(points: list[tuple[int, int]], host: int) -> None:
    law = law_of([("peak", {"points": [list(point) for point in points], "host": host})])
    assert law is not None
    drawn = plot(law)
    assert all(0 <= float(place) <= 760 for place in re.findall(r' (?:x|x1|x2|cx)="([^"]*)"', drawn))
    assert all(0 <= float(place) <= 400 for place in re.findall(r' (?:y|y1|y2|cy)="([^"]*)"', drawn))


def test_without_measurements_there_is_no_chart() -> None:
    assert picture([("tp2", None)]) == ""
    assert picture([("peak", VALUE)]).startswith("<h2>The law that was measured</h2>")
