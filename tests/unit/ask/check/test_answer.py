"""The answer for one stack and for several, and its exit status."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from matrix.ask.check.answer import CheckAnswer, CheckResult, answer_of, unknown_parts
from matrix.ask.check.checkpoint_settings import Checkpoint
from matrix.ask.check.files.declared import Statement, Unread, UnreadKind
from matrix.ask.check.remedies import Upgrade
from matrix.ask.check.rulings import (
    BreakingCalls,
    ChangeKind,
    Clash,
    FailureInStack,
    Rulings,
    StackChange,
    Standing,
)
from matrix.ask.check.training_job import UserJob
from matrix.ask.check.user_stack import UserStack, build
from matrix.ground.catalog.stack import TORCH, UNKNOWN, Place
from matrix.ground.verdicts.record import Verdict
from matrix.ground.verdicts.trend import PastResult
from tests.unit.ask.check.test_remedies import FREE
from tests.unit.ask.check.test_rulings import BROKEN, HERE, OneFinding, job, report, stack
from tests.unit.catalogs import failure, real


def test_optional_breaks_do_not_gate() -> None:
    optional = FailureInStack(BROKEN, Standing.WITH_OPTIONS)
    sure = FailureInStack(BROKEN, Standing.WILL_BREAK, certain=True)
    assert [CheckResult(stack(mcore="0.8.0"), (), found).breaks for found in ((optional,), (optional, sure))] == [
        False,
        True,
    ]


GONE = Unread(UnreadKind.FILE, "gone.txt is missing", HERE)


def result(*, breaks: bool = False, unknown: bool = False, checked: bool = True) -> CheckResult:
    """Return the result of a stack that breaks, of which something is not known, of which something was checked."""
    clashing = (Clash("too old"),) if breaks else ()
    user = stack(mcore="0.9.0") if checked else stack(python="3.12")
    return CheckResult(user, (), (), clashing, unknown=(GONE,) if unknown else ())


@pytest.mark.parametrize(
    ("given", "answer"),
    [
        (result(breaks=True), CheckAnswer.BREAKS),
        (result(breaks=True, unknown=True, checked=False), CheckAnswer.BREAKS),
        (result(unknown=True), CheckAnswer.UNKNOWN),
        (result(unknown=True, checked=False), CheckAnswer.UNKNOWN),
        (result(), CheckAnswer.NONE_KNOWN),
        (result(checked=False), CheckAnswer.NOTHING_CHECKED),
    ],
)
def test_break_counts_more_than_what_is_unknown(given: CheckResult, answer: CheckAnswer) -> None:
    assert given.answer is answer_of([given]) is answer


BREAKS, UNREAD, FINE, EMPTY = result(breaks=True), result(unknown=True), result(), result(checked=False)


@pytest.mark.parametrize(
    ("results", "status", "allowed"),
    [
        ([], 3, 0),
        ([EMPTY], 3, 0),
        ([EMPTY, FINE], 0, 0),
        ([EMPTY, UNREAD], 3, 0),
        ([FINE], 0, 0),
        ([UNREAD], 3, 0),
        ([BREAKS], 1, 1),
        ([FINE, UNREAD], 3, 0),
        ([UNREAD, BREAKS, FINE], 1, 1),
    ],
)
def test_exit_status_is_that_of_all_results(results: list[CheckResult], status: int, allowed: int) -> None:
    """A file that states nothing of the stack is no failure beside one that does, and no all-clear alone."""
    answer = answer_of(results)
    assert (answer.status(), answer.status(allow_unknown=True)) == (status, allowed)


JOB = UserJob(place=HERE)


@pytest.mark.parametrize(
    ("user", "jobs", "checked"),
    [
        (stack(torch="2.9.0"), (), True),
        (stack(te="2.9.0"), (), True),
        (stack(python="3.12"), (), False),
        (stack(python="3.12"), (UserJob(),), False),
        (stack(python="3.12"), (JOB,), True),
        (stack(torch="none", mcore="none", te="none"), (JOB,), False),
        (stack(torch="none", te="none"), (JOB,), True),
        (build(real(), [Statement(TORCH, UNKNOWN, HERE, ">=2.4")]), (), True),
    ],
)
def test_stack_or_job_of_megatron_is_checked(user: UserStack, jobs: tuple[UserJob, ...], checked: bool) -> None:
    """A version that is only limited is one; a job beside none of the packages is none of theirs."""
    assert CheckResult(user, jobs, ()).checked is checked


OPEN_VERSION = FailureInStack(failure("a"), Standing.WITH_VERSIONS)


@pytest.mark.parametrize(
    ("user", "jobs", "failures", "status"),
    [
        (stack(python="3.12"), (JOB,), (OPEN_VERSION,), 3),
        (stack(), (JOB,), (OPEN_VERSION, OPEN_VERSION), 3),
        (stack(), (JOB,), (FailureInStack(failure("a"), Standing.NOT_REACHED),), 0),
        (stack(mcore="0.9.0"), (JOB,), (OPEN_VERSION,), 0),
        (replace(stack(), limits={TORCH: ">=2.4"}), (JOB,), (OPEN_VERSION,), 0),
        (stack(torch="none", te="none"), (JOB,), (OPEN_VERSION,), 0),
        (stack(python="3.12"), (UserJob(),), (OPEN_VERSION,), 3),
    ],
)
def test_job_without_versions_is_unknown(
    user: UserStack, jobs: tuple[UserJob, ...], failures: tuple[FailureInStack, ...], status: int
) -> None:
    """Where no part of the stack is stated, what decides failures is unknown; elsewhere it is not named."""
    unknown = unknown_parts(real(), user, Rulings(failures, (), {}, ()), jobs=jobs)
    assert CheckResult(user, jobs, failures, unknown=unknown).answer.status() == status
    assert len(unknown) == (status == 3 and jobs == (JOB,))


@pytest.mark.parametrize(
    ("parts", "breaks"),
    [
        ({}, False),
        ({"clashes": (Clash("x"),)}, True),
        ({"calls": (BreakingCalls((), Standing.WILL_BREAK, certain=True),)}, True),
        ({"calls": (BreakingCalls((), Standing.WITH_OPTIONS),)}, False),
    ],
)
def test_certain_parts_break(parts: dict[str, Any], breaks: bool) -> None:
    assert CheckResult(stack(mcore="0.8.0"), (), (), **parts).breaks is breaks


def test_answer_as_json_has_every_part() -> None:
    """docs/schema/check.json describes it."""
    entry = failure("a", fix="pin\n  torch", references=("Some#1",))
    past = PastResult(7, "run-7", Verdict.HOLDS)
    whole = FailureInStack(
        entry,
        Standing.WITH_OPTIONS,
        certain=True,
        missing=True,
        reason="it ran",
        needs="with --x",
        hidden_by="b",
        runs=(past,),
        workarounds=(StackChange(ChangeKind.FLAG, "add --y", "run-6"),),
        prove="megatrix run",
        place=Place("job.sh", 3),
        report=replace(report(), data={"gib": 7}),
    )
    bare = FailureInStack(failure("b"), Standing.UNKNOWN)
    call = BreakingCalls((), Standing.SILENT)
    settings, user, run = Checkpoint("/c", "torch_dist", None), stack(mcore="0.8.0"), job("a.py --x")
    result = CheckResult(
        user,
        (run,),
        (whole, bare),
        clashes=(Clash("too old", Place("x", 1)), Clash("too new")),
        calls=(call,),
        problems={"torch": "no clone"},
        unknown=(GONE,),
        upgrades=(Upgrade(TORCH, "2.4.1", (FREE,)),),
        files=("job.sh",),
        checkpoint=settings,
    )
    unstated = {
        "certain": False,
        "missing": False,
        "reason": "",
        "needs": "",
        "hidden_by": "",
        "evidence": "",
        "runs": [],
        "fix": "",
    }
    assert result.to_json() == {
        "answer": "breaks",
        "breaks": True,
        "files": ["job.sh"],
        "stack": {**user.to_json(), "unread": [GONE.to_json()]},
        "jobs": [run.to_json()],
        "failures": [
            {
                "failure": "a",
                "title": "a shows",
                "standing": "breaks with these options",
                "certain": True,
                "missing": True,
                "reason": "it ran",
                "needs": "with --x",
                "hidden_by": "b",
                "evidence": "",
                "runs": [past.to_json()],
                "fix": "pin torch",
                "workarounds": [{"kind": "flag", "text": "add --y", "verified": "run-6"}],
                "prove": "megatrix run",
                "source": "job.sh:3",
                "references": ["Some#1"],
                "preflight": [answer.to_json() for answer in report().answers],
                "numbers": {"gib": 7},
            },
            {
                "failure": "b",
                "title": "b shows",
                "standing": "unknown",
                **unstated,
                "workarounds": [],
                "prove": "",
                "source": "",
                "references": [],
                "preflight": [],
                "numbers": {},
            },
        ],
        "clashes": [{"text": "too old", "source": "x:1"}, {"text": "too new", "source": ""}],
        "calls": [],
        "calls_problem": "no clone",
        "upgrades": [Upgrade(TORCH, "2.4.1", (FREE,)).to_json()],
        "checkpoint": settings.to_json(),
        "loading": None,
        "machine": None,
    }
    assert replace(result, checkpoint=None).to_json()["checkpoint"] is None


def test_machine_as_json_is_that_of_the_site() -> None:
    site: Any = OneFinding()
    assert CheckResult(stack(), (), (), host=site).to_json()["machine"] == {"call": "f()"}
