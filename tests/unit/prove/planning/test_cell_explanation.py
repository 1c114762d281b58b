"""The explanation of a cell, and why it is or is not in the night."""

from __future__ import annotations

import json
from typing import Any

import pytest

from matrix.ground.cases.machine_requirements import BaseOffer
from matrix.ground.catalog.machine import Machine
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.planned import Planned
from matrix.prove.planning.cell_explanation import Explanation, explain
from matrix.prove.planning.night import night, pairwise
from matrix.prove.provision.host import LocalSite
from tests.unit.catalogs import case, catalog, clause, exclusion, failure, image, masked, real, stack

BREAK = failure(
    "break",
    affected=(clause(mcore="<0.8", reason="measured"), clause(mcore="==0.8.0", torch=">=2.4", reason="read")),
    works=(clause(mcore=">=0.9", reason="fixed"),),
)
AFTER = failure("after", works=(clause(),), masked=(masked("break"),), case=(case("args"),))
KNOWN = catalog(
    BREAK,
    AFTER,
    containers=(image("ngc-24.07", "2.4.0a0+3bcc3cddb5"), image("ngc-99", None)),
    exclusions=(exclusion("no device mesh", torch="<2.4", mcore=">=0.9"),),
    stacks=(stack("break", "ngc-24.07", "0.8.0rc0"),),
)
NIGHT = night(KNOWN, pairwise)
HOST = LocalSite(Machine("none", 0, architecture="x86_64"))


def lacks(item: Planned) -> str:
    missing = "ngc-24.07 is missing" if item.cell.base == "ngc-24.07" else ""
    return str(HOST.lack(KNOWN, item, BaseOffer(item.cell.base, missing)) or "")


def explained(id: str) -> Explanation:
    return explain(KNOWN, id, NIGHT, lacks)


def as_json(id: str) -> dict[str, Any]:
    """Return the explanation as its JSON."""
    return explained(id).to_json()


def test_a_cell_has_rules_reasons_and_its_cases() -> None:
    answer = as_json("torch-2.4.0/mcore-0.8.0/te-none/driver-none")
    assert tuple(answer[key] for key in ("base", "torch", "python", "excluded")) == ("wheels", "2.4.0", "3.10", None)
    assert answer["twin"] == "stands for ngc-24.07"
    first, second = answer["failures"]
    assert tuple(first[key] for key in ("failure", "expectation", "rule", "reason", "masked")) == (
        "break",
        "broken",
        "torch >=2.4 and mcore ==0.8.0",
        "read",
        None,
    )
    assert [(one["case"], one["level"], one["here"]) for one in first["night"]] == [("tp2", "cpu", "runs")]
    assert "boundary: mcore 0.8.0 broken | 0.9.0 works" in first["night"][0]["why"]
    assert (second["masked"], second["night"]) == ("break: it fails before", [])


def test_a_cell_without_a_rule_is_unknown() -> None:
    first = as_json("torch-2.3.1/mcore-0.8.0/te-none/driver-none")["failures"][0]
    assert (
        first["expectation"],
        first["rule"],
        first["reason"],
    ) == ("unknown", "", "no rule of affected or works applies to the cell")


def test_an_excluded_cell_has_the_reason() -> None:
    assert as_json("torch-2.3.1/mcore-0.9.0/te-none/driver-none")["excluded"] == "no device mesh"


def test_an_image_has_its_twin_and_missing_requirements() -> None:
    answer = as_json("ngc-24.07/mcore-0.8.0rc0/te-none/driver-none")
    assert (answer["base"], answer["twin"]) == ("image", "its twin is torch-2.4.0")
    assert answer["failures"][0]["night"][0]["here"] == "ngc-24.07 is missing"
    assert as_json("ngc-99/mcore-0.8.0/te-none/driver-none")["twin"] == "has no twin"
    assert as_json("torch-2.5.1/mcore-0.8.0/te-none/driver-none")["twin"] == "stands for no image"


@pytest.mark.parametrize(
    ("id", "what", "hint"),
    [
        ("torch-2.4.0", "not a cell id", "BASE/mcore-VERSION"),
        ("torch-2.4/mcore-0.8.0/te-none/driver-none", "no such base", "torch-2.4.0"),
        ("torch-2.4.0/mcore-0.80/te-none/driver-none", "no such megatron-core release", "did you mean 0.8.0"),
        ("torch-2.4.0/mcore-0.8.0/te-new/driver-none", "not a version of Transformer Engine", "1.9.0"),
        ("torch-2.4.0/mcore-0.8.0/te-none/driver-new", "not a version of driver", "535"),
    ],
)
def test_an_impossible_cell_raises_with_a_hint(id: str, what: str, hint: str) -> None:
    with pytest.raises(MatrixError) as caught:
        as_json(id)
    assert what == caught.value.what
    assert hint in str(caught.value)


def test_the_explanation_is_plain_json() -> None:
    answer = as_json("torch-2.4.0/mcore-0.8.0/te-none/driver-none")
    assert answer == json.loads(json.dumps(answer))
    assert list(answer) == ["cell", "base", "torch", "python", "twin", "excluded", "driver", "failures"]
    first = answer["failures"][0]
    assert list(first) == ["failure", "title", "expectation", "rule", "reason", "masked", "night"]
    assert list(first["night"][0]) == ["case", "level", "expectation", "why", "here"]


@pytest.mark.parametrize(
    ("driver", "fit"),
    [
        ("none", None),
        ("450", {"fit": "unknown", "reason": "the CUDA of ngc-24.07 is not known"}),
    ],
)
def test_fit_of_the_driver_is_explained(driver: str, fit: dict[str, str] | None) -> None:
    assert as_json(f"ngc-24.07/mcore-0.8.0/te-none/driver-{driver}")["driver"] == fit


def test_here_is_the_lack_or_runs() -> None:
    known = catalog(
        failure(affected=(clause(mcore="==0.8.0rc0"),)),
        containers=(image("ngc-24.07", "2.4.0a0+3bcc3cddb5"),),
        stacks=(stack("break", "ngc-24.07", "0.8.0rc0"),),
    )
    (item,) = night(known, pairwise)
    for lack, here in (("needs podman", "needs podman"), ("", "runs")):
        (one,) = explain(known, item.cell.id, [item], dict.fromkeys([item], lack).__getitem__).failures[0].night
        assert here == one.here


def test_cell_of_a_report_has_its_hardware() -> None:
    entry = failure("hardware", affected=(clause(sm="<9"),))
    known = catalog(entry, stacks=(stack("hardware", "torch-2.4.0", "0.8.0", sm="8.0"),))
    for id, expectation in (("0.8.0", "broken"), ("0.7.0", "unknown")):
        answer = explain(known, f"torch-2.4.0/mcore-{id}/te-none/driver-none", [], lacks)
        assert expectation == answer.failures[0].ruling.expectation.value


@pytest.mark.parametrize("core", ["none", "0.4.0"])
def test_cells_without_a_pypi_release_are_explained(core: str) -> None:
    """On debian-13 the real catalog plans cells without megatron-core, and with a release that only a clone has."""
    answer = explain(real(), f"debian-13/mcore-{core}/te-none/driver-none", [], lacks)
    assert answer.base == "image"
