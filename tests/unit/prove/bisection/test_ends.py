"""Runs outside the search: what an end may be before a signature is known, and the second run on both sides."""

from __future__ import annotations

from pathlib import Path

import pytest

from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.stack import MCORE
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.outcome import Outcome, OutcomeKind, Raised
from matrix.ground.verdicts.planned import Planned
from matrix.prove.bisection.axes import Subject, releases
from matrix.prove.bisection.ends import confirm_ends, learn, seen_as_exit
from matrix.prove.bisection.joint import BisectionAnswer
from matrix.prove.bisection.noise import ProbeResult
from matrix.prove.bisection.probe_session import BisectionSession, End, ProbeStore, bisect
from matrix.prove.bisection.search import Plan, ResultKind
from tests.unit import catalogs
from tests.unit.prove.bisection.repositories import ENTRY, KNOWN, FakeProbe, on, record_of

RAISED = Outcome(OutcomeKind.RAISED, "rank 0 raised: KeyError", 0, chain=(Raised("KeyError", "'loss'"),))
PASSED = Outcome(OutcomeKind.PASSED)
ITEM = catalogs.planned(KNOWN)
SUBJECT = Subject(KNOWN, ENTRY, ENTRY.case[0], Level.CPU, on("torch-2.4.0"))


@pytest.mark.parametrize(
    ("outcome", "result"),
    [
        (PASSED, ProbeResult.GOOD),
        (RAISED, ProbeResult.BAD),
        (Outcome(OutcomeKind.HUNG), ProbeResult.BAD),
        (Outcome(OutcomeKind.EXITED, exit_code=3), ProbeResult.BAD),
        (Outcome(OutcomeKind.UNAVAILABLE), ProbeResult.SKIP),
        (Outcome(OutcomeKind.NOT_REACHED), ProbeResult.SKIP),
    ],
)
def test_any_failure_is_bad_before_a_signature(outcome: Outcome, result: ProbeResult) -> None:
    assert seen_as_exit(record_of(ITEM, outcome)) is result


def test_signature_is_learned_from_the_exception() -> None:
    end = End(ITEM, "torch 2.4.0")
    assert learn(record_of(ITEM, RAISED), end, SUBJECT).exception == "KeyError"
    with pytest.raises(MatrixError, match="no signature can be learned from the bad end"):
        learn(record_of(ITEM, Outcome(OutcomeKind.HUNG, "no end after 20 s", 0)), end, SUBJECT)


@pytest.mark.parametrize(("flaky", "kind"), [(False, ResultKind.FIRST_FIXED), (True, ResultKind.AMBIGUOUS)])
def test_second_run_must_repeat_the_first(tmp_path: Path, flaky: bool, kind: ResultKind) -> None:
    """On both sides of the change only; a different result makes it ambiguous, with a note on the answer too."""
    probed: list[str] = []

    def ends(item: Planned) -> Outcome:
        core = str(item.cell.stack[MCORE])
        probed.append(core)
        broken = core < "0.9" and not (flaky and probed.count(core) > 1)
        return catalogs.shown(ENTRY) if broken else PASSED

    session = BisectionSession(FakeProbe(ends), ProbeStore(tmp_path), lambda report: None)
    axis, _ = releases(SUBJECT, MCORE, "0.7.0", "0.9.0")
    found = bisect(SUBJECT, axis, ProbeResult.BAD, Plan(), session)
    answer = confirm_ends(BisectionAnswer(SUBJECT, {"mcore": found}), session)

    assert answer.bisections["mcore"].result.kind is kind
    assert [bool(answer.notes), probed.count("0.7.0"), probed.count("0.8.0"), probed.count("0.9.0")] == [flaky, 1, 2, 2]
