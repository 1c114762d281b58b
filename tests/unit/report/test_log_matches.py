"""The known failures of a log in the terminal."""

from __future__ import annotations

from dataclasses import replace

from matrix.report.log_matches import SHOWN, render, to_look_for
from matrix.verdicts.log_match import LogFault, Reading, match
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
    assert lines[1] == "errors in this log:"
    assert lines[-1] == "  and 2 more"


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
    assert answer.startswith(f"{BEHIND_MPI}: ")
    assert "look for:" not in answer
