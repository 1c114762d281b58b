"""Signatures learned from one outcome."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.ground.catalog.failure import Signature
from matrix.ground.catalog.schema import ambiguity
from matrix.ground.verdicts.outcome import Frame, Outcome, OutcomeKind, Raised
from matrix.ground.verdicts.signature_match import shows
from matrix.prove.bisection.ends import generalised, learned, of_log

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


@pytest.mark.parametrize(
    ("message", "suggestion"),
    [
        ("module 'numpy' has no attribute 'product'", ". Did you mean: 'prod'?"),
        ("name 'tims' is not defined", ". Did you forget to import 'tims'?"),
        ("f() got an unexpected keyword argument 'tp_size'", ". Did you mean 'size'?"),
    ],
)
def test_signature_holds_on_other_python(message: str, suggestion: str) -> None:
    """Python 3.10, 3.12 and 3.13 append suggestions."""
    older, newer = (
        Outcome(OutcomeKind.RAISED, chain=(Raised("NameError", text),)) for text in (message, message + suggestion)
    )
    assert learned(older) == learned(newer)
    for outcome, other in ((older, newer), (newer, older)):
        found = learned(outcome)
        assert found
        assert shows(other, found)


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


def signature(**keys: Any) -> Signature:
    return Signature("learned", **keys)  # type: ignore[arg-type]  # not from TOML


ABORT = """\
Fatal Python error: Aborted

Current thread 0x00007f (most recent call first):
  File "/x/lib/a.py", line 1 in raise
  File "/x/lib/b.py", line 2 in <lambda>
"""


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (
            Outcome(OutcomeKind.EXITED, exit_code=3, evidence="start\n  no space (7 left) on disk  \n \n"),
            signature(exit_code=3, log=r"(?m)^  no space \([\d.:e+-]+ left\) on disk"),
        ),
        (Outcome(OutcomeKind.EXITED, exit_code=3, evidence=" \n"), signature(exit_code=3)),
        (
            Outcome(OutcomeKind.SIGNALED, signal="SIGSEGV", evidence=CRASH),
            signature(signal="SIGSEGV", stack="forward"),
        ),
        (Outcome(OutcomeKind.SIGNALED, signal="SIGABRT", evidence=ABORT), signature(signal="SIGABRT")),
        (
            Outcome(OutcomeKind.SIGNALED, signal="SIGABRT", evidence=f'{ABORT}  File "/x/lib/c.py", line 3 in train\n'),
            signature(signal="SIGABRT", stack="train"),
        ),
        (Outcome(OutcomeKind.SIGNALED, signal="SIGBUS", evidence=CRASH), signature(signal="SIGBUS")),
    ],
)
def test_end_without_exception_has_this_signature(outcome: Outcome, expected: Signature) -> None:
    assert learned(outcome) == expected


@pytest.mark.parametrize(
    ("message", "pattern", "specific"),
    [
        ("", "^$", False),
        ("\n \n", None, False),  # no text, and not empty
        ("  tensor sizes differ\nat rank 0", "tensor sizes differ", True),
        ("abcdefgh", "abcdefgh", True),
        ("abcdefg", "abcdefg", False),
        ("ab cd ef gh ij", "ab cd ef gh ij", False),  # words of two letters
        ("abcd 0x1fghi", "abcd 0x[0-9a-fA-F]+ghi", False),  # seven letters beside the address
    ],
)
def test_signature_of_a_message(message: str, pattern: str | None, specific: bool) -> None:
    frame = Frame("/x/lib:model.py", 3, "forward")
    outcome = Outcome(OutcomeKind.RAISED, chain=(Raised("ValueError", message, (CHAIN.frames[0], frame)), CHAIN))
    place = None if specific else "model.py:forward"
    assert learned(outcome) == signature(exception="ValueError", message=pattern, frame=place)


@pytest.mark.parametrize(
    "frame", [Frame("/x/model.py", 3, "<lambda>"), Frame("/x/model.pyx", 3, "forward"), Frame("<string>", 3, "forward")]
)
def test_frame_without_file_and_function_is_left_out(frame: Frame) -> None:
    outcome = Outcome(OutcomeKind.RAISED, chain=(Raised("ValueError", "", (frame,)),))
    assert learned(outcome) == signature(exception="ValueError", message="^$")


def test_long_line_is_cut_before_it_is_generalised() -> None:
    assert generalised("a " * 99 + "12345") == "a " * 99 + r"[\d.:e+-]+"
    assert generalised("b " * 99 + "a 12345") == "b " * 99 + "a "
    assert generalised("x 1 y 2  ") == r"x [\d.:e+-]+ y [\d.:e+-]+"


def test_last_exception_of_a_log_counts() -> None:
    first, last = Raised("KeyError", "'a'"), Raised("ValueError", "loss diverged at step 12")
    signature = of_log([first, last], ["x"])
    assert signature
    assert (signature.exception, signature.message) == ("ValueError", r"loss diverged at step [\d.:e+-]+")
    assert of_log([], ["no space", " "]) == Signature("learned", log="(?m)^no space")  # type: ignore[arg-type]
    assert of_log([], [""]) is None
