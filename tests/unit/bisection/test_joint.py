"""Two stacks that differ in several packages: who carries it, and which version."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from matrix.bisection import joint
from matrix.bisection.axes import Side, Subject
from matrix.bisection.joint import jointly, stack_of
from matrix.bisection.noise import Noise
from matrix.bisection.search import Plan, ResultKind
from matrix.bisection.session import BisectionSession, ProbeStore
from matrix.catalog.failure import Axis, Level
from matrix.catalog.versions import parse
from matrix.errors import MatrixError
from matrix.planning.planned import Planned
from matrix.report.bisection_page import joint_page
from matrix.verdicts.outcome import Outcome, OutcomeKind
from tests.unit import catalogs
from tests.unit.bisection.repositories import Asker
from tests.unit.catalogs import failure

ENTRY = failure("break", axes=(Axis.BASE, Axis.MCORE, Axis.TE))
KNOWN = catalogs.catalog(ENTRY, containers=(catalogs.image("ngc-24.07", "2.4.0a0+3bcc3cd", "1.8"),))
SUBJECT = Subject(KNOWN, ENTRY, ENTRY.case[0], Level.CPU)
GOOD, BAD = "torch-2.3.1/mcore-0.7.0/te-1.8/driver-none", "torch-2.5.1/mcore-0.9.0/te-1.10/driver-none"


def found(tmp_path: Path, breaks: Callable[[Planned], bool | None], plan: Plan | None = None) -> joint.Joint:
    """`breaks` says None where a mixture can't be asked."""

    def ends(item: Planned) -> Outcome:
        broken = breaks(item)
        if broken is None:
            return Outcome(OutcomeKind.UNAVAILABLE, "no such mixture")
        return catalogs.shown(ENTRY) if broken else Outcome(OutcomeKind.PASSED)

    inquiry = BisectionSession(Asker(ends), ProbeStore(tmp_path), lambda told: None)
    good, bad = (stack_of(KNOWN, text, Side(), Side(), lambda base: "") for text in (GOOD, BAD))
    return jointly(SUBJECT, good, bad, plan or Plan(), inquiry, lambda item, asked: True)


def since(version: str, first: str) -> bool:
    return parse(version) >= parse(first)


@pytest.mark.parametrize(
    ("breaks", "guilty", "inside"),
    [
        (lambda item: since(item.cell.torch, "2.4.0"), ["torch"], {"torch": "2.4.0"}),
        (lambda item: since(item.cell.mcore, "0.8.0"), ["mcore"], {"mcore": "0.8.0"}),
        (lambda item: since(item.cell.te, "1.10"), ["te"], {"te": "1.10"}),
        (
            lambda item: since(item.cell.torch, "2.4.0") and since(item.cell.mcore, "0.9.0"),
            ["mcore", "torch"],
            {"torch": "2.4.0", "mcore": "0.9.0"},
        ),
    ],
)
def test_the_guilty_packages_are_named_and_their_versions(
    tmp_path: Path, breaks: Callable[[Planned], bool], guilty: list[str], inside: dict[str, str]
) -> None:
    """Of torch, TE and megatron-core, all of which differ."""
    told = joint.summarize(found(tmp_path, breaks))

    assert (told.answer, told.to_json()["kind"]) == (guilty, "packages")
    assert {name: one.answer for name, one in told.inside.items()} == inside
    assert set(told.differ) == {"torch", "mcore", "te"}


def test_what_no_mixture_can_tell_apart_is_said(tmp_path: Path) -> None:
    """Where the old torch never goes with the new megatron-core, both may be needed or one."""
    told = joint.summarize(
        found(
            tmp_path,
            lambda item: None if since(item.cell.torch, "2.4.0") != since(item.cell.mcore, "0.8.0") else
            since(item.cell.torch, "2.4.0"),
        )
    )  # fmt: skip

    assert (told.answer, told.to_json()["kind"]) == (None, ResultKind.AMBIGUOUS.value)
    assert told.carriers[0].doubtful == {"mcore", "torch"}
    assert "at most: mcore and torch" in joint.headline(told)


def test_summary_is_plain_json(tmp_path: Path) -> None:
    told = joint.summarize(found(tmp_path, lambda item: since(item.cell.torch, "2.4.0"))).to_json()
    assert told == json.loads(json.dumps(told))
    assert told["differ"] == {"torch": ["2.3.1", "2.5.1"], "mcore": ["0.7.0", "0.9.0"], "te": ["1.8", "1.10"]}
    assert told["carriers"] == [{"packages": ["torch"], "not_told_apart": []}]
    assert (told["probes"][0]["from_bad"], told["probes"][0]["seen"]) == ([], "good")
    inside = told["inside"]["torch"]
    assert (inside["answer"], inside["kind"], inside["axis"], inside["level"]) == ("2.4.0", "first-bad", "torch", "cpu")
    assert inside["probes"][0]["runs"] == {"good": 1}


def test_two_causes_are_both_named(tmp_path: Path) -> None:
    told = joint.summarize(
        found(tmp_path, lambda item: since(item.cell.torch, "2.4.0") or since(item.cell.te, "1.9"))
    )  # fmt: skip

    assert told.answer == ["te", "torch"]
    assert [one.packages for one in told.carriers] == [{"te"}, {"torch"}]
    assert "on its own" in joint.headline(told)


def test_noisy_mixtures_are_asked_until_they_are_settled(tmp_path: Path) -> None:
    """A failure that shows in every second run: no good is believed after one."""
    runs: dict[str, int] = {}

    def at_times(item: Planned) -> bool:
        runs[item.key] = runs.get(item.key, 0) + 1
        return since(item.cell.torch, "2.4.0") and runs[item.key] % 2 == 0

    told = found(tmp_path, at_times, Plan(noise=Noise(0.5)))

    assert joint.summarize(told).answer == ["torch"]
    assert min(count for key, count in runs.items() if "torch-2.3.1" in key) >= 5


def test_a_stack_that_is_not_as_said_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match="the bad stack is not bad"):
        found(tmp_path, lambda item: False)


def test_an_image_that_cannot_run_here_is_stood_for_by_its_twin_and_brings_its_te() -> None:
    stack = stack_of(KNOWN, "ngc-24.07", Side("0.8.0"), Side(), lambda base: "no container tool")
    real = stack_of(KNOWN, "ngc-24.07", Side("0.8.0"), Side(), lambda base: "")

    assert (stack.base, stack.te.version, stack.mcore.version) == ("torch-2.4.0", "1.8", "0.8.0")
    assert "stood for by its twin torch-2.4.0: no container tool" in stack.notes[0]
    assert (real.base, real.notes) == ("ngc-24.07", ())


def test_words_and_page_hold_the_answer_and_how_to_see_it(tmp_path: Path) -> None:
    told = joint.summarize(found(tmp_path, lambda item: since(item.cell.torch, "2.4.0")))

    words, page = joint.render(told, "page.html"), joint_page(told, joint.headline(told), "it breaks")
    for text in (words, page):
        assert "guilty: torch" in text
        assert "2.4.0" in text
        assert "megatrix run" in text
