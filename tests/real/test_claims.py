"""What the catalog claims of all recorded releases, against the code of both sides."""

from __future__ import annotations

from matrix.ground.cases.cells import masked_by
from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.loading import load
from matrix.ground.catalog.stack import MCORE, TE
from matrix.ground.verdicts.judge import judge
from matrix.ground.verdicts.planned import Planned
from matrix.prove.execution.preflights import read_case
from matrix.prove.planning.night import everything


def test_no_claim_contradicts_the_code() -> None:
    """`catalog check` judges those of a night; these are all pairs, once each: 15,306 in 23 s of a core."""
    catalog, red = load(), list[str]()
    claims: dict[object, Planned] = {}
    for item in everything(catalog, [Level.CONTRACT]):
        sides = item.cell.stack[MCORE], item.cell.stack[TE]
        claims.setdefault((item.failure, item.case, *sides, item.expectation), item)
    for item in claims.values():
        failure = catalog.failure(item.failure)
        if not masked_by(catalog, failure, item.cell.stack, item.case):
            outcome = read_case(failure, failure.case_named(item.case), item.cell)
            verdict = judge(failure, item.expectation, outcome, catalog.failures).verdict
            red += [f"{item.key}: {verdict.value}: {outcome.reason}"] if verdict.colour == "red" else []

    assert len(claims) > 15_000
    assert red == []
