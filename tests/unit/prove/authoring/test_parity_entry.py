"""The draft of an entry from layouts judged over releases."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from matrix.ground.catalog.codec import decode
from matrix.ground.catalog.failure import Case, Rule, Signature
from matrix.ground.catalog.schema import read_toml
from matrix.ground.errors import MatrixError
from matrix.kit.parity.factors import Deviation, Point
from matrix.prove.authoring import parity_entry
from matrix.prove.parity.campaigns import CoreResult
from matrix.prove.parity.points import DEVIATES, EQUAL, REFUSED, PointResult

CAUSE = Point.parse("experts=4 z_loss=on tp=2 sequence_parallel=on")
CONTROL = Point.parse("experts=4 z_loss=on dp=2")
Z_LOSS = Deviation("logged", "z_loss", 0, 0.5, 2.0, (0, 1))


def result(core: str, outcome: str, control: str = EQUAL) -> CoreResult:
    rows = (
        PointResult(CAUSE, 1, outcome, (Z_LOSS,) if outcome == DEVIATES else (), largest=0.5),
        PointResult(CONTROL, 1, control),
    )
    return CoreResult(core, "torch-2.13.0", asked=rows)


RESULTS = [result("0.9.0", REFUSED), result("0.16.1", DEVIATES), result("0.18.2", DEVIATES), result("0.19.0", EQUAL)]


def test_entry_has_rules_of_each_span(tmp_path: Path) -> None:
    path = parity_entry.write("z-logged", tmp_path, [CAUSE, CONTROL], RESULTS)
    entry = read_toml(path)
    assert (path, entry["id"]) == (tmp_path / "z_logged" / "failure.toml", "z-logged")
    (affected,) = [decode(Rule, row) for row in entry["affected"]]
    assert (str(affected.bounds["megatron-core"].text), affected.cases) == (">=0.16.1,<0.19.0.dev0", ())
    control, repaired = [decode(Rule, row) for row in entry["works"]]
    assert control.cases == ("experts4-z_loss-dp2",)
    assert repaired.bounds["megatron-core"].text == ">=0.19.0"
    assert (entry["fix"], entry["night"]["mcore"]) == ("megatron-core 0.19.0.", ["0.18.2", "0.19.0"])


def test_cases_of_an_entry_run_the_comparison(tmp_path: Path) -> None:
    path = parity_entry.write("z-logged", tmp_path, [CAUSE, CONTROL], RESULTS)
    cases = [decode(Case, row) for row in read_toml(path)["case"]]
    assert [case.function for case in cases] == [("matrix.kit.parity.campaign", "deviation")] * 2
    assert [(Point.of(case.arguments), case.ranks) for case in cases] == [(CAUSE, 2), (CONTROL, 2)]


def test_signature_of_an_entry_names_layout_quantity_parameter(tmp_path: Path) -> None:
    (row,) = read_toml(parity_entry.write("z-logged", tmp_path, [CAUSE], RESULTS))["signature"]
    signature = decode(Signature, row)
    assert (signature.exception, signature.own) == ("ParityDeviation", True)
    assert signature.message is not None
    assert re.search(signature.message, f"{CAUSE}: {Z_LOSS}")
    assert not re.search(signature.message, f"{CONTROL}: {Z_LOSS}")
    assert not re.search(signature.message, f"{CAUSE}: {replace(Z_LOSS, parameter='aux_loss')}")


@pytest.mark.parametrize(
    ("layout", "controls", "expected"),
    [
        ("attention=mla tp=2", ["attention=mla tp=2 sequence_parallel=on"], "mla|tp|not sp"),
        ("experts=4 z_loss=on tp=2 sequence_parallel=on", [], "experts|z|tp|sp"),
        ("experts=4 dp=2 etp=2", [], "experts|etp"),
    ],
)
def test_conditions_are_the_options_of_a_layout(layout: str, controls: list[str], expected: str) -> None:
    texts = {
        "mla": "--multi-latent-attention",
        "tp": "--tensor-model-parallel-size >= 2",
        "sp": "--sequence-parallel",
        "not sp": "not --sequence-parallel",
        "experts": "--num-experts >= 2",
        "z": "--moe-z-loss-coeff != 0|0.0",
        "etp": "--expert-tensor-parallel-size >= 2",
    }
    conditions = list(parity_entry.conditions(Point.parse(layout), [Point.parse(text) for text in controls]))
    assert conditions == [texts[name] for name in expected.split("|")]


def test_layout_that_deviates_nowhere_is_no_entry() -> None:
    with pytest.raises(MatrixError, match="no release deviates"):
        parity_entry.entry_text("none", [CONTROL], RESULTS, date(2026, 1, 1))
