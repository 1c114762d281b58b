"""`megatrix parity` on the command line, with a judge of planted causes in place of the cells."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from matrix.cli.main import main
from matrix.ground.catalog import loading
from matrix.ground.errors import ExitStatus
from matrix.prove.parity import campaigns
from tests.schemas import items_of
from tests.unit.prove.parity.fakes import NORM, SINKS, Planted


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handlers: None) -> Planted:
    judge = Planted()

    def cell(catalog: Any, source: str, say: Any) -> Any:
        process = nullcontext(SimpleNamespace(judge=judge))
        return SimpleNamespace(release="0.19.2", base="torch-2.15.0", identity=source, judge=lambda log: process)

    monkeypatch.setattr(campaigns, "core_cell", cell)
    monkeypatch.chdir(tmp_path)
    return judge


LAYOUT = ("--layout", "softmax=learnable tp=2")


def test_deviation_exits_with_1_and_names_it(planted: Planted, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["parity", "--mcore", "0.19.2", *LAYOUT]) == ExitStatus.BAD
    printed = capsys.readouterr().out
    assert printed.startswith("DEVIATES in 0.19.2: softmax=learnable tp=2 (seed 1)")
    assert "norm deviates by 0.001" in printed


def test_equal_layout_exits_with_0(planted: Planted, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["parity", "--mcore", "0.19.2", "--layout", "dp=2"]) == ExitStatus.GOOD
    assert capsys.readouterr().out.startswith("EQUAL: dp=2")


def test_refused_layout_exits_with_3(planted: Planted, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["parity", "--mcore", "0.19.2", "--layout", "recompute=full"]) == ExitStatus.NOTHING
    assert "no such package" in capsys.readouterr().out


@pytest.mark.parametrize("layout", ["pp=4", "tp=3", "sequence_parallel=on", "tp"])
def test_impossible_layout_exits_with_2(planted: Planted, capsys: pytest.CaptureFixture[str], layout: str) -> None:
    assert main(["parity", "--layout", layout]) == ExitStatus.MISTAKE
    assert "expected" in capsys.readouterr().err
    assert not planted.asked


def test_search_prints_json(planted: Planted, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["parity", "--mcore", "0.18.2", "--mcore", "0.19.2", "--json", "--seed", "5", "--unaided"])
        == ExitStatus.BAD
    )
    items = items_of(capsys.readouterr().out, "parity")
    assert [item["core"] for item in items] == ["0.18.2", "0.19.2"]
    for item in items:
        (cause,) = [cause for cause in item["causes"] if cause["outcome"] == "deviates"]
        assert (cause["layout"], cause["certainty"]) == (str(SINKS), "confirmed")
        assert cause["deviations"][0]["quantity"] == NORM.quantity


def test_newest_release_is_the_default(planted: Planted, capsys: pytest.CaptureFixture[str]) -> None:
    releases = [release.version for release in loading.load().megatron_core]
    main(["parity", "--layout", "tp=2", "--json"])
    assert [item["core"] for item in items_of(capsys.readouterr().out, "parity")] == releases[-1:]
    main(["parity", "--mcore", "all", "--layout", "tp=2", "--json"])
    assert [item["core"] for item in items_of(capsys.readouterr().out, "parity")] == releases


def test_folder_of_a_fork_is_a_core(planted: Planted, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    main(["parity", "--consumer", str(tmp_path), "--layout", "tp=2", "--json"])
    assert [item["core"] for item in items_of(capsys.readouterr().out, "parity")] == [str(tmp_path)]


def test_core_that_does_not_exist_is_invalid_input(planted: Planted, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["parity", "--mcore", "no-such-core", "--layout", "tp=2"]) == ExitStatus.MISTAKE
    assert not planted.asked
