"""The preflights in the folders of failures."""

from __future__ import annotations

from pathlib import Path

import pytest

from matrix.contract import calling
from matrix.errors import MatrixError
from matrix.execution.preflights import installed, preflight_of, preflight_outcome
from matrix.kit.preflight import Machine, TrainingJob
from matrix.verdicts.outcome import OutcomeKind, Raised
from tests.unit.catalogs import cell

CELL = cell("debian-13", torch="2.6.0", mcore="0.9.0", te="1.9.0")
CODE = """
from matrix.kit.options import Option
from matrix.kit.preflight import (Answer, Error, Preflight, Report, Status, unjudged)

def examine(job, machine, contracts):
    mode = job.arguments.get("mode", "")
    if mode == "unknown":
        return unjudged("a flag", f"nothing is known of {job.te}")
    errors = {"raises": Error("TypeError", "no"), "crashes": Error("Crash", "too small", "SIGSEGV")}
    world = Answer("the world", Status.YES, f"{job.world.mpi} of {job.world.size}, {job.torch_mpi}")
    return Report("a flag", (world, Answer("it starts", Status.NO, "a reason", errors.get(mode))))

PREFLIGHT = Preflight("a flag", examine, (Option("mode", "MODE"),))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a_flag").mkdir()
    (tmp_path / "a_flag" / "preflight.py").write_text(CODE)
    (tmp_path / "another").mkdir()
    return tmp_path / "a_flag"


@pytest.mark.parametrize(
    ("mode", "kind", "reason", "chain"),
    [
        ("", OutcomeKind.PASSED, "1 of 2, True", ()),
        ("raises", OutcomeKind.RAISED, "TypeError: no", (Raised("TypeError", "no"),)),
        ("crashes", OutcomeKind.RAISED, "too small", (Raised("Crash", "too small"),)),
        ("unknown", OutcomeKind.UNAVAILABLE, "nothing is known of 1.9.0", ()),
    ],
)
def test_answer_is_converted_to_an_outcome(
    folder: Path, mode: str, kind: OutcomeKind, reason: str, chain: tuple[Raised, ...]
) -> None:
    outcome = preflight_outcome(folder, CELL, "torchrun", 2, {"mode": mode}, calling)
    assert (outcome.kind, outcome.reason, outcome.chain) == (kind, reason, chain)


def test_unknown_argument_raises(folder: Path) -> None:
    with pytest.raises(MatrixError, match="mode"):
        preflight_outcome(folder, CELL, "torchrun", 2, {"mod": "raises"}, calling)


def test_installed_finds_preflights_in_folders(folder: Path) -> None:
    assert [one.subject for one in installed(folder.parent)] == ["a flag"]


def test_module_without_a_preflight_raises(folder: Path) -> None:
    (folder / "preflight.py").write_text("")
    with pytest.raises(MatrixError, match="PREFLIGHT"):
        preflight_of(folder)


@pytest.mark.parametrize("code", ["", "raise RuntimeError('no')", "def", "import nothing_of_that_name"])
def test_broken_preflight_reports_itself(folder: Path, code: str) -> None:
    """`check` lists the preflights of all failures before it reads their options."""
    (broken := folder.parent / "broken").mkdir()
    (broken / "preflight.py").write_text(code)
    sound, other = sorted(installed(folder.parent), key=lambda one: one.subject)
    report = other.examine(TrainingJob(), Machine(), calling)
    assert (sound.subject, report.judged) == ("a flag", False)
    assert str(broken / "preflight.py") in report.answers[0].reason
