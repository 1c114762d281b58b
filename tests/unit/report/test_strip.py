"""The history of a case as pictures and as text."""

from __future__ import annotations

from matrix.report.strip import render, strip, trend
from matrix.store.trend import PastResult
from matrix.verdicts.record import Verdict
from tests.unit.store.test_trend import nights


def test_strips_and_trends_have_text_equivalents() -> None:
    assert render(nights("hhRR")) == "holds x 2, regressed x 2"
    assert strip(nights("hhRR")).text == "holds x 2, regressed x 2"
    assert trend(nights("hu")) is None
    slower = [PastResult(n, f"night-{n}", Verdict.HOLDS, 2.0 if n < 8 else 6.0, "", False) for n in range(16)]
    line = trend(slower)
    assert line is not None
    assert "steps from 2.0 s to 6.0 s at night-8" in line.text
    assert len(line.steps) == 1


def test_each_night_has_a_bar() -> None:
    """Height and colour both show the verdict; a cached night is marked."""
    found = strip(nights("hhRuc"))
    assert [(bars.verdict.value, bars.height, bars.cached) for bars in found.bars] == [
        ("holds", 10, False), ("regressed", 22, False), ("unavailable", 3, False), ("holds", 10, True),
    ]  # fmt: skip
    assert [night for bars in found.bars for night in bars.nights] == [
        (0, "night-0: holds"), (9, "night-1: holds"), (18, "night-2: regressed"), (27, "night-3: unavailable"),
        (36, "night-4: holds, cached"),
    ]  # fmt: skip
