"""The known failures of a log in the terminal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from matrix.ask.check.kind_answer import answer
from matrix.ground.catalog.kinds import kind_table
from matrix.ground.verdicts.crash import NativeCrash
from matrix.ground.verdicts.log_match import LogFault, Reading, match
from matrix.ground.verdicts.outcome import Frame, Raised
from matrix.show.log_matches import SHOWN, render, sort_of, to_look_for
from tests.founding import BEHIND_MPI
from tests.unit.catalogs import real
from tests.unit.logs import PEER, SUMMARY
from tests.unit.terminals import piped


def read(log: str) -> Reading:
    return match([log], real().failures)


def test_log_of_consequences_names_the_first_rank() -> None:
    answer = piped(*render(read(PEER + SUMMARY)))
    assert "nothing that the catalog knows" in answer
    assert "the cause is not in this log: look into the one of rank 0" in answer


def test_rendered_log_text_is_sanitised_and_masked() -> None:
    log = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nValueError: \x07 HF_TOKEN=hunter2-secret\n'
    answer = piped(*render(read(log)))
    assert "hunter2" not in answer
    assert "\x07" not in answer


def test_further_errors_are_counted() -> None:
    faults = tuple(LogFault(line, f"KeyError: {line}") for line in range(1, SHOWN + 3))
    lines = piped(*render(Reading((), faults, (), 9))).splitlines()
    assert lines[2] == "errors in this log:"
    assert lines[3 + SHOWN] == "  and 2 more"


def test_likely_failure_states_what_to_look_for() -> None:
    error = "RuntimeError: DataLoader worker (pid 1) is killed by signal: Killed\n"
    log = f"python pretrain_gpt.py --seq-length 131072\n{error}"
    (sighting,) = read(log).known
    option = "without --no-create-attention-mask-in-dataloader"
    assert to_look_for(sighting) == [
        "the traceback",
        f"a command with --seq-length >= 131072 {option}",
        f"a command with --seq-length >= 32768 {option}, and the host lacks 8*S^2 bytes for each worker",
    ]
    assert "look for: the traceback" in " ".join(piped(*render(read(log))).split())
    bare = replace(sighting, lacks="", failure=replace(sighting.failure, reached_by=()))
    assert to_look_for(bare) == ["a stack that it breaks with"]


def test_certain_failure_needs_no_search() -> None:
    frames = '  File "/x/megatron/core/model.py", line 1, in f\n'
    error = "TypeError: initialize_ub() got an unexpected keyword argument 'tp_size'\n"
    answer = piped(*render(read(f"Traceback (most recent call last):\n{frames}{error}")))
    assert answer.startswith(f"known: {BEHIND_MPI}\n\n{BEHIND_MPI}: ")
    assert "look for:" not in answer


FRAME = Frame("/x/megatron/core/a.py", 3, "forward")
ELSEWHERE = Frame("/x/b.py", 3, "main")


@pytest.mark.parametrize(
    ("fault", "part"),
    [
        (LogFault(1, "", raised=Raised("KeyError", "", (FRAME,)), frame=FRAME), "raised in Megatron's stack"),
        (LogFault(1, "", raised=Raised("KeyError", "", (ELSEWHERE,))), "raised outside of Megatron's stack"),
        (LogFault(1, "", raised=Raised("KeyError", "")), "without traceback"),
        (LogFault(1, ""), "ends within a traceback"),
        (LogFault(1, "", crash=NativeCrash("SIGKILL", None, "torchrun")), "memory or time"),
        (LogFault(1, "", crash=NativeCrash("SIGSEGV", None, "ucx")), "a native crash"),
        (LogFault(1, "", crash=NativeCrash(None, 1, "torchrun")), "without an error message"),
    ],
)
def test_sort_of_an_unknown_fault(fault: LogFault, part: str) -> None:
    assert part in sort_of(fault)


@pytest.mark.parametrize(("error", "contract"), [("TypeError: f() takes 1", True), ("KeyError: 'a'", False)])
def test_unknown_fault_has_the_next_commands(error: str, contract: bool) -> None:
    log = f'Traceback (most recent call last):\n  File "{FRAME.file}", line 3, in forward\n{error}\n'
    lines = piped(*render(read(log), log="my log")).splitlines()
    assert "  look at: forward, /x/megatron/core/a.py:3" in lines
    assert any(line.startswith("  $ megatrix contract --consumer") for line in lines) is contract
    assert lines[-1] == "  $ megatrix catalog new ID --from 'my log'"


def test_kind_has_its_answer_and_no_second_line() -> None:
    log = (
        f'Traceback (most recent call last):\n  File "{FRAME.file}", line 3, in f\nImportError: No module named apex\n'
    )
    reading = match([log], real().failures, kind_table())
    answers = [answer(sighting, kind_table(), reading.versions) for sighting in reading.kinds]
    text = piped(*render(reading, answers))
    assert "KIND module-missing: a module is missing" in text
    assert "answer:  apex belongs to APEX" in text
    assert "errors" not in text


def test_next_commands_only_where_nothing_is_known() -> None:
    frames = 'Traceback (most recent call last):\n  File "/x/megatron/core/a.py", line 3, in f\n'
    known_failure = f"{frames}TypeError: initialize_ub() got an unexpected keyword argument 'tp_size'\n"
    text = piped(*render(read(f"{known_failure}{frames}KeyError: 'a'\n")))
    assert "NOT IN THE CATALOG" in text
    assert "sort:" not in text
