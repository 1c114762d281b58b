"""The rules and the cells of a draft."""

from __future__ import annotations

from matrix.ground.catalog.stack import TORCH
from matrix.ground.verdicts.outcome import Outcome, OutcomeKind
from matrix.prove.bisection.drafting import can_be_named, measured_rules
from matrix.prove.bisection.noise import ProbeResult
from tests.unit import catalogs
from tests.unit.prove.bisection.repositories import KNOWN, record_of


def test_measured_cells_have_rules_and_picks() -> None:
    """Equal rules are written once, and a cell within a range has none of its own."""
    items = [catalogs.planned(KNOWN, f"torch-{torch}", "0.8.0") for torch in ("2.3.1", "2.4.0", "2.5.1")]
    results = (ProbeResult.GOOD, ProbeResult.BAD, ProbeResult.BAD)
    records = [record_of(item, Outcome(OutcomeKind.PASSED)) for item in items]
    cells = list(zip(records, results, strict=True))
    rules = measured_rules(KNOWN, [*cells, cells[0]], {})
    ranged = measured_rules(KNOWN, cells, {"affected": [{TORCH: ">=2.4.0,<=2.5.1"}]})

    assert [(rule["torch"], rule["mcore"]) for rule in rules["works"]] == [("==2.3.1", "==0.8.0")]
    assert [rule["torch"] for rule in rules["affected"]] == ["==2.4.0", "==2.5.1"]
    assert [pick["base"] for pick in rules["pick"]] == ["torch-2.3.1", "torch-2.4.0", "torch-2.5.1"]
    assert ranged["affected"] == [{TORCH: ">=2.4.0,<=2.5.1"}]
    assert measured_rules(KNOWN, [], {}) == {"affected": [], "works": [], "pick": []}


def test_package_without_a_name_is_left_out() -> None:
    assert can_be_named(KNOWN.cell("torch-2.4.0", {"numpy": "2.0.0"}, ["numpy"]))
    assert not can_be_named(KNOWN.cell("torch-2.4.0", {"ml-dtypes": "0.6.0"}, ["ml-dtypes"]))
