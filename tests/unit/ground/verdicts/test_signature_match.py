"""A signature matches its own failure and no other.

examples/shows of a failure's folder holds outcomes of that failure (torch-*, debian-* are real runs; the others are
built from the reports), examples/look_alikes holds outcomes that are easily mistaken for it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.ground.catalog.failure import Signature
from matrix.ground.verdicts.outcome import Frame, Outcome, OutcomeKind, Raised
from matrix.ground.verdicts.signature_match import SILENT, matched, owner, shows
from matrix.prove.authoring.examples import LOOK_ALIKES, SHOWS, read
from tests.unit.catalogs import failure, real, shown
from tests.unit.logs import examples, failure_of, name


def one_of_each_form(paths: list[Path]) -> list[Path]:
    """The first example of each set of keys that a failure's signatures have: `catalog check` judges every example."""
    found: dict[object, Path] = {}
    for path in paths:
        marks = failure_of(path, real().failures).signature
        keys = frozenset(frozenset(key for key, value in vars(mark).items() if value is not None) for mark in marks)
        found.setdefault((keys, read(path).kind, path.stem.partition("-")[0]), path)
    return [*found.values()]


@pytest.mark.parametrize("path", one_of_each_form(examples(SHOWS)), ids=name)
def test_an_example_shows_exactly_its_own_failure(path: Path) -> None:
    found = [entry.id for entry in real().failures if matched(entry, read(path))]
    assert [failure_of(path, real().failures).id] == found


@pytest.mark.parametrize("path", one_of_each_form(examples(LOOK_ALIKES)), ids=name)
def test_a_look_alike_does_not_show_the_failure(path: Path) -> None:
    assert matched(failure_of(path, real().failures), read(path)) is None


def test_every_signature_of_the_catalog_has_an_example() -> None:
    shown_by = {
        (entry.id, signature.name)
        for path in examples(SHOWS)
        for entry in [failure_of(path, real().failures)]
        for signature in entry.signature
        if shows(read(path), signature)
    }
    assert shown_by == {(entry.id, signature.name) for entry in real().failures for signature in entry.signature}


def test_every_failure_of_the_catalog_has_look_alikes() -> None:
    found = {failure_of(path, real().failures).id for path in examples(LOOK_ALIKES)}
    assert {entry.id for entry in real().failures} == found


PLANNER = Frame("/site-packages/torch/distributed/checkpoint/default_planner.py", 389, "create_plan")
RAISED = Outcome(
    OutcomeKind.RAISED,
    rank=0,
    signal="SIGSEGV",
    exit_code=6,
    chain=(Raised("AssertionError", "not in md", (PLANNER,)), Raised("CheckpointException", "ranks: [0]", ())),
    evidence='Fatal Python error: Segmentation fault\n  File "group.py", line 1 in createProcessGroupMPI\n',
)
KEYS = {
    "exception": ("AssertionError", "KeyError"),
    "message": (r"not in \w+", "not out of"),
    "frame": ("default_planner.py:create_plan", "planner.py:create_plan"),
    "through": ("default_planner.py:create_plan", "default_planner.py:plan"),
    "signal": ("SIGSEGV", "SIGABRT"),
    "stack": ("createProcessGroupMPI", "createProcessGroup"),
    "exit_code": (6, 1),
    "log": ("createProcessGroup(MPI|NCCL)", "createProcessGroupNCCL"),
}


@given(st.fixed_dictionaries({}, optional={key: st.sampled_from(values) for key, values in KEYS.items()}))
def test_every_key_that_is_given_must_hold(keys: dict[str, object]) -> None:
    signature = Signature("mixed", **keys)  # type: ignore[arg-type]
    assert all(value == KEYS[key][0] for key, value in keys.items()) == shows(RAISED, signature)


@pytest.mark.parametrize(
    ("frame", "there"),
    [
        ("default_planner.py:create_plan", True),
        ("checkpoint/default_planner.py:create_plan", True),
        ("planner.py:create_plan", False),
        ("default_planner.py:plan", False),
        ("default_planner.py:", False),
        ("default_planner.py", False),
    ],
)
def test_frame_is_path_end_and_function(frame: str, there: bool) -> None:
    assert there == shows(RAISED, Signature("at", exception="AssertionError", frame=frame))  # type: ignore[arg-type]


def test_callee_frame_does_not_count_as_function() -> None:
    below = Raised("AssertionError", "", (PLANNER, Frame("/python3.10/dataclasses.py", 1453, "replace")))
    at_planner = Signature("at", exception="AssertionError", frame="default_planner.py:create_plan")  # type: ignore[arg-type]
    assert not shows(Outcome(OutcomeKind.RAISED, chain=(below,)), at_planner)
    through_planner = Signature("by", exception="AssertionError", through="default_planner.py:create_plan")  # type: ignore[arg-type]
    assert shows(Outcome(OutcomeKind.RAISED, chain=(below,)), through_planner)
    assert not shows(Outcome(OutcomeKind.RAISED, chain=(replace(below, frames=below.frames[1:]),)), through_planner)


def test_exception_message_and_frame_hold_in_one_exception() -> None:
    mixed = Signature("mixed", exception="CheckpointException", message="not in md")  # type: ignore[arg-type]
    assert not shows(RAISED, mixed)


@pytest.mark.parametrize("kind", SILENT)
def test_an_outcome_without_a_failure_matches_nothing(kind: OutcomeKind) -> None:
    entry = failure("this")
    outcome = Outcome(kind, chain=shown(entry).chain)
    assert matched(entry, outcome) is None


def test_the_first_signature_that_matches_is_named() -> None:
    first, second = (Signature(name, exception="TypeError") for name in ("first", "second"))  # type: ignore[arg-type]
    found = matched(failure("this", signature=(first, second)), shown(failure("this")))
    assert first == found


def test_owner_of_outcome_is_the_shown_entry() -> None:
    entries = [failure("this"), failure("other")]
    assert entries[1] == owner(entries, shown(entries[1]))
    assert owner(entries, shown(failure("third"))) is None


@pytest.mark.parametrize("status", [139, 255, 1])
def test_signal_of_launched_rank_comes_from_log(status: int) -> None:
    """mpirun and torchrun end with a status of their own; the log has the signal."""
    launched = replace(RAISED, kind=OutcomeKind.EXITED, signal=None, exit_code=status)
    assert shows(launched, Signature("at", signal="SIGSEGV", stack="createProcessGroupMPI"))  # type: ignore[arg-type]


def test_stack_of_another_signal_does_not_match() -> None:
    aborted = replace(RAISED, evidence=RAISED.evidence.replace("Segmentation fault", "Aborted"))
    assert not shows(aborted, Signature("at", signal="SIGSEGV", stack="createProcessGroupMPI"))  # type: ignore[arg-type]


def test_raising_rank_did_not_die_by_signal() -> None:
    raised = replace(RAISED, signal=None)
    assert not shows(raised, Signature("at", signal="SIGSEGV", stack="createProcessGroupMPI"))  # type: ignore[arg-type]
