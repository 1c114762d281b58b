"""Tests of matrix.parity.judgements."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from matrix.errors import MatrixError
from matrix.kit.parity.factors import Point
from matrix.parity.judgements import DEVIATES, EQUAL, Judgement, Judgements
from tests.unit.parity.fakes import LOSS, SINKS

ROW = Judgement(SINKS, 1, DEVIATES, (LOSS, replace(LOSS, size=math.inf, ratio=None)), largest=0.5, seconds=1.5)


def test_judgements_outlive_the_process(tmp_path: Path) -> None:
    first = Judgements(tmp_path, "0.19.2", "torch-2.15.0")
    first.add(ROW)
    first.add(Judgement(Point(), 2, EQUAL))
    again = Judgements(tmp_path, "0.19.2", "torch-2.15.0")
    assert again.get(SINKS, 1) == ROW
    assert again.get(Point(), 2) == Judgement(Point(), 2, EQUAL)
    assert again.get(SINKS, 2) is None
    assert len(again) == 2


def test_other_content_has_other_judgements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = Judgements(tmp_path, "0.19.2", "torch-2.15.0").path
    assert Judgements(tmp_path, "0.19.2", "torch-2.13.0").path != before
    assert Judgements(tmp_path, "0.19.1", "torch-2.15.0").path != before
    monkeypatch.setattr("matrix.parity.judgements.content", lambda: "other")
    assert Judgements(tmp_path, "0.19.2", "torch-2.15.0").path != before


@pytest.mark.parametrize("cut", [1, 20, 100])
def test_a_line_that_a_kill_cut_is_judged_again(tmp_path: Path, cut: int) -> None:
    judgements = Judgements(tmp_path, "0.19.2", "torch-2.15.0")
    judgements.add(Judgement(Point(), 2, EQUAL))
    judgements.add(ROW)
    judgements.path.write_bytes(judgements.path.read_bytes()[:-cut])
    again = Judgements(tmp_path, "0.19.2", "torch-2.15.0")
    assert (again.get(SINKS, 1) is None) is (cut > 1)
    again.add(ROW)
    whole = Judgements(tmp_path, "0.19.2", "torch-2.15.0")
    assert whole.get(SINKS, 1) == ROW
    assert whole.get(Point(), 2)


def test_a_changed_factor_is_judged_again(tmp_path: Path) -> None:
    judgements = Judgements(tmp_path, "0.19.2", "torch-2.15.0")
    judgements.path.parent.mkdir(exist_ok=True)
    judgements.path.write_text('{"point": {"gone": 2}, "seed": 1, "outcome": "equal"}\n')
    assert len(Judgements(tmp_path, "0.19.2", "torch-2.15.0")) == 0


def test_unwritable_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "parity").write_text("a file")
    with pytest.raises(MatrixError):
        Judgements(tmp_path / "parity", "0.19.2", "torch-2.15.0").add(ROW)


def test_kind_is_the_quantity_or_the_error() -> None:
    assert ROW.kind == "deviates loss"
    one, other = (Judgement(SINKS, 1, "refused", text=f"ValueError: {number} heads") for number in (3, 5))
    assert one.kind == other.kind == "refused ValueError: N heads"
