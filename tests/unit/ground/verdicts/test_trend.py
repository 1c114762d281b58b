"""Trends over nights: flakes are separated from changes, steps of a duration from noise."""

from __future__ import annotations

import pytest

from matrix.ground.verdicts.record import Verdict
from matrix.ground.verdicts.trend import PastResult, flakes, turns


def nights(text: str, contents: str = "") -> list[PastResult]:
    """Return a night per letter: holds, Regressed, unavailable, cached (holds); `contents` has the content of each."""
    verdicts = {"h": Verdict.HOLDS, "R": Verdict.REGRESSED, "u": Verdict.UNAVAILABLE, "c": Verdict.HOLDS}
    return [
        PastResult(n, f"night-{n}", verdicts[letter], 1.0, content, letter == "c")
        for n, (letter, content) in enumerate(zip(text, contents or "a" * len(text), strict=True))
    ]


@pytest.mark.parametrize(
    ("text", "contents", "flipped", "again"),
    [
        ("hhhh", "aaaa", 0, 3),
        ("hRh", "aaa", 2, 2),
        ("hRR", "abb", 0, 1),  # the content changed: a regression
        ("hcuh", "aaaa", 0, 1),  # nights without a run do not count
        ("hh", "  ", 0, 1),
        ("h", "a", 0, 0),
    ],
)
def test_a_flake_changes_colour_with_equal_content(text: str, contents: str, flipped: int, again: int) -> None:
    found = flakes(nights(text, contents))
    assert (found.flipped, found.again) == (flipped, again)


def test_unknown_content_is_no_flake() -> None:
    unknown = [
        PastResult(n, "", verdict, 1.0, "", False) for n, verdict in enumerate((Verdict.HOLDS, Verdict.REGRESSED))
    ]
    assert flakes(unknown).again == 0
    assert [changed for _, _, changed in turns(unknown)] == [True]


def test_turns_report_whether_the_content_changed() -> None:
    found = [(one.run, other.run, changed) for one, other, changed in turns(nights("hhRuRh", "aabbbb"))]
    assert found == [("night-1", "night-2", True), ("night-4", "night-5", False)]
