"""`megatrix doctor` as a person meets it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from matrix.check import probe
from matrix.check.examine import Assumed as Wishes
from matrix.check.examine import examine
from matrix.check.facts import MIB
from matrix.cli.doctor import render
from matrix.cli.main import main
from tests.founding import MPI
from tests.unit.catalogs import real
from tests.unit.check.machines import BARE, NGC


@pytest.fixture(autouse=True)
def bare_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU, no torch, no launcher, wherever the tests run."""
    monkeypatch.setattr(probe, "look", lambda python, environ: BARE)


def test_a_job_that_will_fail_is_status_1_with_what_to_change(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--mcore", "0.9.0", "--te", "1.9.0", "--launcher", "torchrun", "--world-size", "8"]) == 1
    out = capsys.readouterr().out
    assert "MPI_COMM_WORLD has 1 of 8 processes (torchrun)" in out
    assert f"WILL FAIL: SIGSEGV in createProcessGroupMPI, or MPI_ERR_RANK and exit code 6 ({MPI})" in out
    assert out.splitlines()[-3:] == ["change one of these:", "  start it with mpirun", "  megatron-core 0.10.0"]


def test_a_job_that_is_not_known_to_fail_is_status_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--mcore", "0.10.0", "--te", "1.9.0", "--launcher", "torchrun"]) == 0
    assert capsys.readouterr().out.endswith("nothing here is known to fail\n")


def test_a_machine_without_transformer_engine_is_not_said_to_be_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "there is no Transformer Engine here; name one with --te" in out
    assert out.endswith("no job was judged\n")


def test_what_the_machine_may_surprise_with_is_a_note() -> None:
    small = replace(NGC, shm=64 * MIB)
    assert "note: /dev/shm is as small" in render(examine(small, Wishes(mcore="0.10.0", te="1.9.0")))


def test_the_answers_stand_in_columns() -> None:
    lines = render(examine(NGC, Wishes(mcore="0.10.0", te="1.9.0"))).split("\n\n")[0].splitlines()[1:]
    answers = [line.split(maxsplit=1)[1] for line in lines]
    assert {line.index(line.split("  ", 1)[1].lstrip()) for line in answers} == {21}


def test_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--mcore", "0.9.0", "--te", "1.9.0", "--launcher", "torchrun", "--json"]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["changes"] == [["start it with mpirun"], ["megatron-core 0.10.0"]]


def test_a_mistake_is_status_2_with_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--launcher", "torchrn"]) == 2
    assert "did you mean torchrun?" in capsys.readouterr().err


def test_the_silent_relative_is_a_note_also_where_nothing_fails() -> None:
    told = render(examine(NGC, Wishes(mcore="0.10.0", te="1.9.0"), real().failures))
    assert 'note: init_process_group("mpi") would return in every process with rank 0 of 1, and reduce nothing' in told
    assert told.endswith("nothing here is known to fail")
