"""The expected seconds of a case: its own past, that of the case elsewhere, half of its deadline, or a default."""

from __future__ import annotations

from dataclasses import replace

import pytest

from matrix.ground.catalog.codec import decode, encode
from matrix.ground.catalog.failure import Level
from matrix.ground.verdicts.planned import Planned
from matrix.prove.planning.statistics import DEFAULT_S, Basis, Durations, Estimate, statement
from tests.unit.catalogs import case, catalog, failure, planned

KNOWN = catalog(failure(case=(case("tp2"), replace(case("slow"), deadline=600))))
HERE, ELSEWHERE = planned(KNOWN), planned(KNOWN, core="0.9.0")


@pytest.mark.parametrize(
    ("past", "expected"),
    [
        ({HERE.key: 3.0, ELSEWHERE.key: 7.0}, Estimate(3.0, Basis.CASE)),
        ({ELSEWHERE.key: 7.0}, Estimate(7.0, Basis.OTHER_CELLS)),
        ({replace(HERE, level=Level.GPU).key: 7.0}, Estimate(DEFAULT_S[Level.CPU], Basis.DEFAULT)),
    ],
)
def test_estimate_uses_the_nearest_past(past: dict[str, float], expected: Estimate) -> None:
    assert Durations(KNOWN, past).estimate(HERE) == expected


def test_own_deadline_bounds_the_estimate() -> None:
    """A case that may take longer than others usually does; at level contract it is only read."""
    slow = replace(HERE, case="slow", level=Level.GPU)
    none = Durations(KNOWN, {})
    assert none.estimate(slow) == Estimate(300.0, Basis.DEADLINE)
    assert none.estimate(replace(slow, level=Level.CONTRACT)).basis is Basis.DEFAULT


def test_timed_cases_carry_their_seconds() -> None:
    (timed,) = Durations(KNOWN, {HERE.key: 3.0}).timed([HERE])
    assert timed == replace(HERE, seconds=3.0)
    assert decode(type(timed), encode(timed)) == timed


def test_another_case_of_the_cell_counts_nothing() -> None:
    past = {replace(HERE, case="slow").key: 7.0, replace(HERE, failure="other").key: 8.0}
    assert Durations(KNOWN, past).estimate(HERE) == Estimate(DEFAULT_S[Level.CPU], Basis.DEFAULT)


def test_report_without_a_case_has_a_default() -> None:
    """Its failure has no case of that name."""
    report = replace(HERE, case="report", level=Level.GPU, reproducible=False)
    assert Durations(KNOWN, {}).estimate(report) == Estimate(DEFAULT_S[Level.GPU], Basis.DEFAULT)


PINNED = replace(HERE, packages=("transformers==5.0",), seconds=60.0)
ON_OTHER = planned(KNOWN, base="torch-2.3.1")


@pytest.mark.parametrize(
    ("waiting", "absent", "parallel", "expected"),
    [
        ([], [], (1, 1), "nothing to run: 7 cases from the cache"),
        ([HERE], [], (1, 1), "1 case to run, 7 from the cache; expected: 1 min, at most 0.0 GB of disk"),
        ([PINNED] * 4, [], (1, 1), "4 cases to run, 7 from the cache; expected: 5 min, at most 0.1 GB of disk"),
        ([PINNED] * 4, [], (2, 1), "4 cases to run, 7 from the cache; expected: 5 min, at most 0.1 GB of disk"),
        ([PINNED] * 4, [], (1, 2), "4 cases to run, 7 from the cache; expected: 3 min, at most 0.1 GB of disk"),
        (
            [PINNED, ON_OTHER],
            ["torch-2.4.0", "torch-2.3.1"],
            (2, 1),
            "2 cases to run, 7 from the cache; expected: 4 min, at most 10.3 GB of disk, made: torch-2.3.1, "
            "torch-2.4.0",
        ),
    ],
)
def test_statement_has_cases_minutes_and_disk(
    waiting: list[Planned], absent: list[str], parallel: tuple[int, int], expected: str
) -> None:
    """Cases of one base share its lane; each environment takes a minute; minutes are rounded up."""
    assert statement(waiting, 7, absent, parallel) == expected
