"""The options that select the points of a bisection: what they hold fixed, and which of them conflict."""

from __future__ import annotations

from typing import Any

import pytest

from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.stack import MCORE
from matrix.ground.errors import MatrixError
from matrix.prove.bisection.axes import Subject
from matrix.prove.bisection.question import BisectionQuestion, run_by
from tests.unit import catalogs
from tests.unit.catalogs import image
from tests.unit.prove.bisection.repositories import ENTRY

KNOWN = catalogs.catalog(ENTRY, containers=(image("ngc-24.07", "2.4.0a0+3bcc3cd", "1.8"),))


def question(**given: Any) -> BisectionQuestion:
    names = ("axis", "good", "bad", "repo", "case", "level", "base", "torch", "mcore", "te", "writer", "driver")
    return BisectionQuestion(**{"failure": "break", **dict.fromkeys(names, ""), "compile": False, "own": (), **given})


@pytest.mark.parametrize(
    ("given", "base", "mcore"),
    [
        ({"axis": "torch", "mcore": "0.8.0"}, "", "0.8.0"),
        ({"axis": "mcore", "torch": "2.4.0"}, "torch-2.4.0", "none"),
        ({"axis": "mcore", "base": "torch-2.4.0"}, "torch-2.4.0", "none"),
        ({"good": "torch-2.3.1", "bad": "torch-2.4.0", "mcore": "0.8.0"}, "", "0.8.0"),
        ({"axis": "torch", "own": ("x",)}, "", "none"),
    ],
)
def test_subject_holds_what_is_fixed(given: dict[str, Any], base: str, mcore: str) -> None:
    """A command needs no package."""
    subject = question(**given).subject(KNOWN)
    assert (subject.base, subject.text(MCORE), subject.level) == (base, mcore, Level.CPU)


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({}, "neither an axis nor two stacks"),
        ({"good": "torch-2.3.1"}, "neither an axis nor two stacks"),
        ({"good": "a", "bad": "b", "repo": "."}, "neither an axis nor two stacks"),
        ({"good": "a", "bad": "b", "torch": "2.4.0"}, "neither an axis nor two stacks"),
        ({"axis": "torch"}, "--mcore is required"),
        ({"axis": "torch", "torch": "2.4.0"}, "the axis torch can't be fixed"),
        ({"axis": "container", "base": "torch-2.4.0"}, "the axis container can't be fixed"),
        ({"axis": "mcore", "mcore": "0.8.0"}, "the axis mcore can't be fixed"),
        ({"axis": "te", "te": "1.9"}, "the axis te can't be fixed"),
        ({"axis": "driver", "repo": ".", "good": "a", "bad": "b"}, "--repo requires axis mcore, te or writer"),
        ({"axis": "mcore", "repo": ".", "good": "a"}, "--repo requires both ends"),
        ({"axis": "writer"}, "this failure reads no checkpoint"),
        ({"axis": "torch", "mcore": "0.8.0", "compile": True}, "--compile builds a Transformer Engine"),
        ({"failure": "nothing"}, "no such failure"),
    ],
)
def test_options_that_conflict_are_refused(given: dict[str, Any], what: str) -> None:
    with pytest.raises(MatrixError, match=what):
        question(**given).subject(KNOWN)


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"axis": "torch", "good": "2.4.0", "bad": "2.4.0"}, "good and bad are the same point"),
        ({"axis": "torch", "good": "2.5.1"}, "the axis has too few points"),
        ({"good": "torch-2.3.1", "bad": "torch-2.4.0/mcore-0.8.0/te-none/driver-none"}, None),
    ],
)
def test_ends_are_two_points(given: dict[str, Any], what: str | None) -> None:
    asked = question(mcore="0.8.0", **given)
    subject = asked.subject(KNOWN)
    if what is None:
        good, bad = asked.points(subject, lambda base: "").ends
        assert (good.label, bad.label) == ("torch 2.3.1", "torch 2.4.0")
        return
    with pytest.raises(MatrixError, match=what):
        asked.points(subject, lambda base: "")


@pytest.mark.parametrize(
    ("level", "lack", "base"),
    [
        (Level.CPU, "no container tool", "torch-2.4.0"),
        (Level.CPU, "", "ngc-24.07"),
        (Level.GPU, "no container tool", "ngc-24.07"),
    ],
)
def test_twin_runs_an_image_that_cannot(level: Level, lack: str, base: str) -> None:
    """At level gpu only the image has a compiled Transformer Engine."""
    subject = Subject(KNOWN, ENTRY, ENTRY.case[0], level)
    assert run_by(subject, lambda image: lack, "ngc-24.07") == base
    assert run_by(subject, lambda image: lack, "torch-2.3.1") == "torch-2.3.1"
