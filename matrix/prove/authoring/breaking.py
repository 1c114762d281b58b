"""Run an entry with its expectations swapped: every case must turn red, in both directions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from matrix.ground.catalog.failure import Expectation, Failure
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.judge import judge
from matrix.ground.verdicts.planned import Planned
from matrix.ground.verdicts.record import Record, Verdict

SWAPPED: Final = {Expectation.BROKEN: Expectation.WORKS, Expectation.WORKS: Expectation.BROKEN}
# The verdict of each swapped expectation: a case that breaks regresses, a case that works vanishes.
RED: Final = {Expectation.WORKS: Verdict.REGRESSED, Expectation.BROKEN: Verdict.VANISHED}


def swapped(night: Iterable[Planned], failure: str) -> list[Planned]:
    """Return the night's cases of a failure, each with the opposite expectation.

    Raises MatrixError where they do not include both a case that breaks and one that works.
    """
    cases = [case for case in night if case.failure == failure and case.expectation in SWAPPED]
    missing = SWAPPED.keys() - {case.expectation for case in cases}
    if missing:
        raise MatrixError(
            "--break requires a case of each expectation",
            got=f"no case of {failure} in the night is expected: {', '.join(sorted(kind.value for kind in missing))}",
            expected="at least one case that breaks and one that works",
        )
    return [replace(case, expectation=SWAPPED[case.expectation]) for case in cases]


def rejudged(failure: Failure, records: Iterable[Record]) -> list[Record]:
    """Return the records of a failure, each judged with the opposite expectation: no case runs again."""
    swapped_records = []
    for record in records:
        if record.failure == failure.id and record.expectation in SWAPPED:
            planned = replace(record.planned, expectation=SWAPPED[record.expectation])
            verdict = judge(failure, planned.expectation, record.outcome).verdict
            swapped_records.append(replace(record, planned=planned, verdict=verdict))
    return swapped_records


def outcome(records: Sequence[Record]) -> tuple[bool, str]:
    """Return whether both red verdicts appeared, and no other except `unavailable`; with a line that describes it."""
    wrong = [record for record in records if record.verdict not in (RED[record.expectation], Verdict.UNAVAILABLE)]
    counts = Counter(record.verdict for record in records)
    text = ", ".join(f"{count} {verdict.value}" for verdict, count in sorted(counts.items()))
    if not wrong and counts.keys() >= {*RED.values()}:
        return True, f"expectations swapped; red in both directions: {text}"
    why = f"{len(wrong)} cases have another verdict" if wrong else "regressed and vanished did not both appear"
    return False, f"expectations swapped, but {why}: {text}"
