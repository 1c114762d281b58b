"""Signatures learned from one outcome."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.catalog.patterns import ambiguity
from matrix.verdicts.learning import generalised, learned
from matrix.verdicts.outcome import Frame, Outcome, OutcomeKind, Raised
from matrix.verdicts.signature import shows

CHAIN = Raised("AssertionError", "", (Frame("/x/torch/default_planner.py", 7, "create_default_global_save_plan"),))
CRASH = """\
Fatal Python error: Segmentation fault

Current thread 0x00007f (most recent call first):
  File "/x/lib/model.py", line 3 in forward
"""
texts = st.text(max_size=300)
raised = st.builds(
    Raised,
    st.sampled_from(["KeyError", "AssertionError", "RuntimeError"]),
    texts,
    st.lists(st.builds(Frame, texts, st.integers(0, 9), texts), max_size=3).map(tuple),
)


@given(raised, texts)
def test_a_learned_signature_shows_its_outcome(error: Raised, log: str) -> None:
    """Of an exception, and of a status; its patterns take linear time."""
    for outcome in (
        Outcome(OutcomeKind.RAISED, chain=(error, Raised("CommandError", "status 1"))),
        Outcome(OutcomeKind.EXITED, exit_code=3, evidence=log),
    ):
        signature = learned(outcome)
        assert signature
        assert shows(outcome, signature)
        assert not any(ambiguity(pattern) for pattern in (signature.message, signature.log) if pattern)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("step 120 of /tmp/a7/x.py at 0x7f00", "step 7 of ./b/y.py at 0xdeadbeef"),
        ("loss is 1.5e-3", "loss is 12"),
        ("took 12:30:01", "took 1:02:59"),
    ],
)
def test_numbers_addresses_and_paths_are_replaced(one: str, other: str) -> None:
    assert re.fullmatch(generalised(one), other)


def test_numbers_in_names_are_compared() -> None:
    assert not re.search(generalised("got bf16 in a cell"), "got bf32 in a cell")


@pytest.mark.parametrize(
    ("message", "frame"),
    [
        ("", "default_planner.py:create_default_global_save_plan"),
        ("[1, 2]", "default_planner.py:create_default_global_save_plan"),
        ("initialize_ub() got an unexpected keyword argument 'tp_size'", None),
    ],
)
def test_a_frame_completes_a_vague_message(message: str, frame: str | None) -> None:
    found = learned(Outcome(OutcomeKind.RAISED, chain=(Raised(CHAIN.type, message, CHAIN.frames),)))

    assert found
    assert (found.exception, found.frame) == ("AssertionError", frame)


def test_another_place_is_another_failure() -> None:
    found = learned(Outcome(OutcomeKind.RAISED, chain=(CHAIN,)))
    elsewhere = Raised("AssertionError", "", (Frame("/x/torch/default_planner.py", 9, "another"),))

    assert found
    assert not shows(Outcome(OutcomeKind.RAISED, chain=(elsewhere,)), found)


def test_a_crash_has_signal_and_function() -> None:
    outcome = Outcome(OutcomeKind.SIGNALED, signal="SIGSEGV", exit_code=-11, evidence=CRASH)
    found = learned(outcome)

    assert found
    assert (found.signal, found.stack) == ("SIGSEGV", "forward")
    assert shows(outcome, found)


def test_a_status_has_the_last_line() -> None:
    found = learned(Outcome(OutcomeKind.EXITED, exit_code=3, evidence="start\nno space on disk 7\n\n"))

    assert found
    assert found.exit_code == 3
    assert found.log
    assert re.search(found.log, "no space on disk 12\n")


@pytest.mark.parametrize("kind", [OutcomeKind.PASSED, OutcomeKind.HUNG, OutcomeKind.UNAVAILABLE])
def test_no_evidence_teaches_nothing(kind: Any) -> None:
    assert learned(Outcome(kind)) is None
