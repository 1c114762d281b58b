"""What exceptions show, show in part, begin and resemble, by made signatures."""

from __future__ import annotations

from typing import Any

import pytest

from matrix.ground.catalog.failure import Signature
from matrix.ground.verdicts.outcome import Frame, Outcome, OutcomeKind, Raised
from matrix.ground.verdicts.signature_match import Entry, SignatureIndex
from tests.unit.catalogs import catalog, failure

PLACE = Frame("/x/core/group.py", 3, "make")


def index(**marks: dict[str, Any]) -> SignatureIndex:
    """Return the index of failures with one signature each."""
    entries = [failure(id, signature=(Signature("mark", **mark),)) for id, mark in marks.items()]  # type: ignore[arg-type]
    return SignatureIndex(catalog(*entries).failures)


FRAMED = {"exception": "TypeError", "message": "argument of type 'NoneType'", "frame": "core/group.py:make"}


def test_all_keys_must_hold_in_one_exception() -> None:
    known = index(a=FRAMED, b={"message": r"item\.index not in \d+"})
    whole = Raised("TypeError", "argument of type 'NoneType' is not iterable", (PLACE,))
    assert [one.failure.id for one in known.shown_by(whole)] == ["a"]
    assert known.shown_by(Raised("ValueError", whole.message, (PLACE,))) == []
    assert known.shown_by(Raised("TypeError", whole.message)) == []
    assert [one.failure.id for one in known.shown_by(Raised("Any", "item.index not in 3"))] == ["b"]


@pytest.mark.parametrize(
    ("message", "text", "shown"),
    [
        ("argument of type 'NoneType'", "argument of type 'NoneType' is not iterable", False),
        ("expected string", "expected string or bytes-like object", False),
        (r"item\.index not in md", "item.index not in md", True),
        ("make_group failed", "make_group failed", True),
        ("DefaultAllocator failed", "DefaultAllocator failed", True),
        (r"^(item\.index not in md)?$", "item.index not in md", True),
        (r"^(item\.index not in md)?$", "", False),
    ],
)
def test_message_without_its_frame_must_be_specific(message: str, text: str, shown: bool) -> None:
    """A message that any program can raise is similar at most."""
    raised = Raised("TypeError", text)
    framed = index(a={**FRAMED, "message": message})
    assert bool(framed.partly_shown_by(raised)) is shown
    assert bool(framed.similar_to(raised)) is bool(text)
    frameless = index(a={"exception": "TypeError", "message": message})
    assert bool(frameless.partly_shown_by(raised)) is bool(text)


def test_cut_message_must_fit_frame_and_pattern() -> None:
    known = index(
        a={"exception": "TypeError", "message": r"(One|Two)\.make\(\) got an unexpected keyword 'wide'"},
        b={**FRAMED, "message": r"cannot allocate for the group: \d+ bytes"},
    )
    for type_name, message, frames, expected in (
        ("TypeError", "One.make() got an unexpected keyw", (), ["a"]),
        ("TypeError", "Other.make() got an unexpected keyw", (), []),
        ("ValueError", "One.make() got an unexpected keyw", (), []),
        ("TypeError", "One.make() got", (), []),  # too short to be evidence
        ("TypeError", "cannot allocate for the gro", (PLACE,), ["b"]),
        ("TypeError", "cannot allocate for the gro", (Frame("/x/other.py", 1, "f"),), []),
    ):
        assert [one.failure.id for one in known.begun_by(Raised(type_name, message, frames))] == expected


def test_nearest_message_is_the_first_similar() -> None:
    known = index(
        a={"exception": "TypeError", "message": "make_group takes four named arguments today"},
        b={"exception": "TypeError", "message": "make_group takes five named arguments today"},
    )
    similar = known.similar_to(Raised("TypeError", "make_group takes five plain arguments today"))
    assert [(entry.failure.id, differs) for entry, differs in similar] == [("b", "another message: without named")]
    assert known.similar_to(Raised("ValueError", "make_group takes five plain arguments today")) == []


def test_text_of_a_crash_signature_shows_nothing_alone() -> None:
    known = index(
        crash={"signal": "SIGSEGV", "log": "mpi4py"},
        text={"log": "in stage one\n.*two"},
        any={"log": r"\d{9}"},
    )
    assert [entry.failure.id for entry, _ in known.shown_by_text("mpi4py\nin stage one\nthen two\n")] == ["text"]
    crash = Outcome(OutcomeKind.SIGNALED, signal="SIGSEGV", evidence="mpi4py")
    assert [entry.failure.id for entry in known.shown_by_crash(crash)] == ["crash"]
    assert list(known.choices()) == [["in stage one"], [""]]


@pytest.mark.parametrize(
    ("message", "frame", "raised_in", "text", "expected"),
    [
        ("index out of range", "planner.py:create_global_plan", "create_global_plan", "list index out of range", True),
        ("index out of range", "planner.py:create_global_plan", "", "list index out of range", False),  # not in the log
        ("index out of range", "version.py:__init__", "__init__", "list index out of range", False),
        ("make_group failed", None, "train", "make_group failed", True),
        (r"worker \d+ failed", None, "train", "worker 3 failed in my_file.py", False),  # my_file.py is not compared
        ("make_group failed in stage two", None, "train", "make_group failed in sta", True),  # the message is cut
        (None, None, "train", "make_group failed", False),
    ],
)
def test_evidence_of_stack_is_what_is_compared(
    message: str | None, frame: str | None, raised_in: str, text: str, expected: bool
) -> None:
    mark = Signature("mark", exception="Any", message=message, frame=frame)  # type: ignore[arg-type]
    frames = (Frame("/x/planner.py", 1, raised_in),) if raised_in else ()
    assert Entry(failure("a"), mark).names_stack(Raised("Any", text, frames)) is expected
