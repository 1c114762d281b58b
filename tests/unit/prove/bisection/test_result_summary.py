"""The summary of a bisection: its headlines, what makes it ambiguous, its JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.stack import TORCH
from matrix.prove.bisection.result_summary import AttributionSummary, BisectionSummary, ChangePoint, Cost
from matrix.prove.bisection.search import Carrier, ResultKind
from tests.schemas import validator
from tests.unit.prove.bisection.test_joint import found, since

FIRST_BAD = ChangePoint(
    "2.4.0", ResultKind.FIRST_BAD, 1.0, "2.4.0 (torch-2.4.0)", "2.3.1", "torch", {}, "", (), (), (),
    Cost(3, 3, 3, 0, 1.0), (),
)  # fmt: skip
AMBIGUOUS = replace(FIRST_BAD, answer=None, kind=ResultKind.AMBIGUOUS, label="", candidates=("2.4.0", "2.5.1"))
SURE, DOUBTFUL = Carrier(frozenset({"te"})), Carrier(frozenset({"mcore", "torch"}), frozenset({"torch"}))


@pytest.mark.parametrize(
    ("change", "headline"),
    [
        (FIRST_BAD, "first bad: PyTorch 2.4.0 (torch-2.4.0)"),
        (replace(FIRST_BAD, kind=ResultKind.FIRST_FIXED), "first fixed: PyTorch 2.4.0 (torch-2.4.0)"),
        (AMBIGUOUS, "ambiguous: 2 of PyTorch: the points between are inconclusive"),
        (replace(AMBIGUOUS, flips=(("a", "b"),)), "ambiguous: 2 of PyTorch: the history changes more than once"),
        (replace(AMBIGUOUS, candidates=("2.4.0",)), "ambiguous: PyTorch 2.4.0: further runs contradict it"),
    ],
)
def test_headline_of_a_change_names_the_point(change: ChangePoint, headline: str) -> None:
    assert change.headline == headline


@pytest.mark.parametrize(
    ("carriers", "change", "headlines", "guilty", "ambiguous"),
    [
        ((), FIRST_BAD, ["first bad: PyTorch 2.4.0 (torch-2.4.0)"], None, False),
        ((), AMBIGUOUS, ["ambiguous: 2 of PyTorch: the points between are inconclusive"], None, True),
        ((SURE,), FIRST_BAD, ["guilty: te", FIRST_BAD.headline], ["te"], False),
        ((SURE,), AMBIGUOUS, ["guilty: te", AMBIGUOUS.headline], ["te"], True),
        (
            (DOUBTFUL,),
            FIRST_BAD,
            ["guilty: mcore, perhaps only with torch, not separable here: ", FIRST_BAD.headline],
            None,
            True,
        ),
        ((SURE, SURE), FIRST_BAD, ["guilty: te, and on its own te", FIRST_BAD.headline], ["te"], False),
    ],
)
def test_summary_is_ambiguous_where_a_part_is(
    carriers: tuple[Carrier, ...],
    change: ChangePoint,
    headlines: list[str],
    guilty: list[str] | None,
    ambiguous: bool,
) -> None:
    attribution = AttributionSummary(carriers, {}, (), 0, 0.0, ()) if carriers else None
    summary = BisectionSummary("break", "it breaks", "tp2", Level.CPU, {"torch": change}, attribution)

    assert (summary.headlines, summary.ambiguous) == (headlines, ambiguous)
    assert attribution is None or attribution.guilty == guilty


def test_summary_is_plain_json(tmp_path: Path) -> None:
    """Of two stacks; the JSON of one axis has the form of each change inside."""
    summary = found(tmp_path, lambda item: since(str(item.cell.stack[TORCH]), "2.4.0"))
    written = summary.to_json()
    assert written == json.loads(json.dumps(written))
    assert written["differ"] == {"torch": ["2.3.1", "2.5.1"], "mcore": ["0.7.0", "0.9.0"], "te": ["1.8", "1.10"]}
    assert written["carriers"] == [{"packages": ["torch"], "not_told_apart": []}]
    assert (written["probes"][0]["from_bad"], written["probes"][0]["seen"]) == ([], "good")
    inside = written["inside"]["torch"]
    assert (inside["answer"], inside["kind"], inside["axis"], inside["level"]) == ("2.4.0", "first-bad", "torch", "cpu")
    assert inside["probes"][0]["runs"] == {"good": 1}
    assert replace(summary, attribution=None).to_json() == inside
    for item in (written, inside):
        validator("bisect").validate({"schema": "megatrix/bisect/1", "version": "0", "items": [item]})
