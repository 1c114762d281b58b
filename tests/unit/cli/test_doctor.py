"""`megatrix doctor` on the command line."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from matrix.check import probe
from matrix.check.examine import Assumed, examine
from matrix.check.facts import MIB
from matrix.cli.doctor import render
from matrix.cli.main import main
from tests.founding import MPI
from tests.unit.catalogs import real
from tests.unit.check.machines import BARE, NGC
from tests.unit.terminals import piped


@pytest.fixture(autouse=True)
def bare_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set a machine without GPU, torch and launcher."""
    monkeypatch.setattr(probe, "look", lambda python, environ: BARE)


def test_a_failing_job_exits_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    """The output ends with the changes that make it start."""
    assert main(["doctor", "--mcore", "0.9.0", "--te", "1.9.0", "--launcher", "torchrun", "--world-size", "8"]) == 1
    out = capsys.readouterr().out
    assert "MPI_COMM_WORLD has 1 of 8 processes (torchrun)" in out
    assert f"WILL FAIL: SIGSEGV in createProcessGroupMPI, or MPI_ERR_RANK and exit code 6 ({MPI})" in out
    assert out.splitlines()[-3:] == ["change one of these:", "  start it with mpirun", "  megatron-core 0.10.0"]


def test_a_job_without_known_failure_exits_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--mcore", "0.10.0", "--te", "1.9.0", "--launcher", "torchrun"]) == 0
    assert capsys.readouterr().out.endswith("no known failure applies\n")


def test_without_transformer_engine_no_job_is_judged(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "there is no Transformer Engine here; name one with --te" in out
    assert out.endswith("no job was judged\n")


def test_small_shared_memory_is_a_note() -> None:
    small = replace(NGC, shm=64 * MIB)
    printed = piped(*render(examine(small, Assumed(mcore="0.10.0", te="1.9.0"))))
    assert "note: /dev/shm has a container's default size" in printed


def test_the_answers_are_aligned_in_columns() -> None:
    lines = piped(*render(examine(NGC, Assumed(mcore="0.10.0", te="1.9.0")))).split("\n\n")[0].splitlines()[1:]
    answers = [line.split(maxsplit=1)[1] for line in lines]
    assert {line.index(line.split("  ", 1)[1].lstrip()) for line in answers} == {21}


def test_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--mcore", "0.9.0", "--te", "1.9.0", "--launcher", "torchrun", "--json"]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["changes"] == [["start it with mpirun"], ["megatron-core 0.10.0"]]


def test_invalid_input_exits_with_2_and_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--launcher", "torchrn"]) == 2
    assert "did you mean torchrun?" in capsys.readouterr().err


def test_a_silent_mpi_failure_is_a_note() -> None:
    """It is printed although no known failure applies."""
    printed = piped(*render(examine(NGC, Assumed(mcore="0.10.0", te="1.9.0"), real().failures)))
    assert (
        'note: init_process_group("mpi") would return in every process with rank 0 of 1, and reduce nothing' in printed
    )
    assert printed.endswith("no known failure applies\n")
