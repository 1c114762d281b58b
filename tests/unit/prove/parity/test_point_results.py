"""Tests of matrix.prove.parity.points."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from matrix.ground.errors import MatrixError
from matrix.kit.parity.factors import Point
from matrix.prove.parity.points import DEVIATES, EQUAL, PointResult, PointResults
from tests.unit.prove.parity.fakes import LOSS, SINKS

ROW = PointResult(SINKS, 1, DEVIATES, (LOSS, replace(LOSS, size=math.inf, ratio=None)), largest=0.5, seconds=1.5)


def test_judgements_outlive_the_process(tmp_path: Path) -> None:
    first = PointResults(tmp_path, "0.19.2", "torch-2.15.0")
    first.add(ROW)
    first.add(PointResult(Point(), 2, EQUAL))
    again = PointResults(tmp_path, "0.19.2", "torch-2.15.0")
    assert again.get(SINKS, 1) == ROW
    assert again.get(Point(), 2) == PointResult(Point(), 2, EQUAL)
    assert again.get(SINKS, 2) is None
    assert len(again) == 2


def test_other_content_has_other_judgements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = PointResults(tmp_path, "0.19.2", "torch-2.15.0").path
    assert PointResults(tmp_path, "0.19.2", "torch-2.13.0").path != before
    assert PointResults(tmp_path, "0.19.1", "torch-2.15.0").path != before
    monkeypatch.setattr("matrix.prove.parity.points.content", lambda: "other")
    assert PointResults(tmp_path, "0.19.2", "torch-2.15.0").path != before


@pytest.mark.parametrize("cut", [1, 20, 100])
def test_line_kill_cut_judged_again(tmp_path: Path, cut: int) -> None:
    comparisons = PointResults(tmp_path, "0.19.2", "torch-2.15.0")
    comparisons.add(PointResult(Point(), 2, EQUAL))
    comparisons.add(ROW)
    comparisons.path.write_bytes(comparisons.path.read_bytes()[:-cut])
    again = PointResults(tmp_path, "0.19.2", "torch-2.15.0")
    assert (again.get(SINKS, 1) is None) is (cut > 1)
    again.add(ROW)
    whole = PointResults(tmp_path, "0.19.2", "torch-2.15.0")
    assert whole.get(SINKS, 1) == ROW
    assert whole.get(Point(), 2)


def test_a_changed_factor_is_judged_again(tmp_path: Path) -> None:
    comparisons = PointResults(tmp_path, "0.19.2", "torch-2.15.0")
    comparisons.path.parent.mkdir(exist_ok=True)
    comparisons.path.write_text('{"point": {"gone": 2}, "seed": 1, "outcome": "equal"}\n')
    assert len(PointResults(tmp_path, "0.19.2", "torch-2.15.0")) == 0


@pytest.mark.parametrize(
    ("outcome", "lasts"),
    [("equal", True), ("refused", True), ("timeout", False), ("memory", False), ("harness", False), ("crashed", False)],
)
def test_undecided_point_is_judged_again(outcome: str, lasts: bool, tmp_path: Path) -> None:
    row = PointResult(SINKS, 1, outcome)
    PointResults(tmp_path, "0.19.2", "torch-2.15.0").add(row)
    assert PointResults(tmp_path, "0.19.2", "torch-2.15.0").get(SINKS, 1) == (row if lasts else None)


def test_unwritable_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "parity").write_text("a file")
    with pytest.raises(MatrixError):
        PointResults(tmp_path / "parity", "0.19.2", "torch-2.15.0").add(ROW)


def test_kind_is_the_quantity_or_the_error() -> None:
    assert ROW.kind == "deviates loss"
    one, other = (PointResult(SINKS, 1, "refused", text=f"ValueError: {number} heads") for number in (3, 5))
    assert one.kind == other.kind == "refused ValueError: N heads"
