"""Outcome against expectation gives the verdict: the table of the design, as a pure function."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from matrix.ground.catalog.failure import Expectation, Failure
from matrix.ground.verdicts.outcome import Outcome, OutcomeKind
from matrix.ground.verdicts.record import Verdict
from matrix.ground.verdicts.signature_match import matched, owner

# By expectation: the verdict on a case that passed, and on one that shows its failure.
VERDICTS = {
    Expectation.BROKEN: (Verdict.VANISHED, Verdict.REPRODUCED),
    Expectation.WORKS: (Verdict.HOLDS, Verdict.REGRESSED),
    Expectation.UNKNOWN: (Verdict.LEARNED, Verdict.LEARNED),
}


@dataclass(frozen=True)
class Judgement:
    """A verdict with its evidence: the signature that matched, or the id of the other failure that matched."""

    verdict: Verdict
    signature: str | None = None
    other: str | None = None


def judge(failure: Failure, expectation: Expectation, outcome: Outcome, catalog: Iterable[Failure] = ()) -> Judgement:
    """Return the verdict on `outcome`. If it does not show `failure`, `catalog` is searched for one that it shows.

    Without an expectation, a failure that the entry states to hide it is a result: the case is masked, as stated.
    """
    if outcome.kind is OutcomeKind.UNAVAILABLE:
        return Judgement(Verdict.UNAVAILABLE)
    if outcome.kind is OutcomeKind.NOT_REACHED:
        return Judgement(Verdict.NOT_REACHED)
    if outcome.kind is OutcomeKind.PASSED:
        return Judgement(VERDICTS[expectation][0])
    signature = matched(failure, outcome)
    if signature is not None:
        return Judgement(VERDICTS[expectation][1], signature.name)
    shown_failure = owner((entry for entry in catalog if entry.id != failure.id), outcome)
    other = shown_failure.id if shown_failure else None
    masked = expectation is Expectation.UNKNOWN and other in {masked.by for masked in failure.masked}
    return Judgement(Verdict.LEARNED if masked else Verdict.UNEXPLAINED, other=other)
