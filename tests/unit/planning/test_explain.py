"""What is known of a cell, and why it is or is not in the night."""

from __future__ import annotations

import json
from typing import Any

import pytest

from matrix.errors import MatrixError
from matrix.planning.covering import pairwise
from matrix.planning.explain import Explanation, explain, render
from matrix.planning.night import night
from matrix.planning.planned import Planned
from matrix.provision.host import Host
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
HOST = Host(0, "none", "x86_64")


def lacks(item: Planned) -> str:
    return HOST.can_run(item)[1] or ("ngc-24.07 is not here" if item.cell.base == "ngc-24.07" else "")


def explained(id: str) -> Explanation:
    return explain(KNOWN, id, NIGHT, lacks)


def told(id: str) -> dict[str, Any]:
    """Return the explanation as its JSON."""
    return explained(id).to_json()


def test_a_cell_is_told_with_rule_reason_and_place_in_the_night() -> None:
    answer = told("torch-2.4.0/mcore-0.8.0/te-none/driver-none")
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


def test_a_cell_of_which_nothing_is_said_says_so() -> None:
    first = told("torch-2.3.1/mcore-0.8.0/te-none/driver-none")["failures"][0]
    assert (
        first["expectation"],
        first["rule"],
        first["reason"],
    ) == ("unknown", "", "neither affected nor works says anything of it")


def test_an_excluded_cell_says_why() -> None:
    assert told("torch-2.3.1/mcore-0.9.0/te-none/driver-none")["excluded"] == "no device mesh"


def test_an_image_says_its_twin_and_what_a_case_needs() -> None:
    answer = told("ngc-24.07/mcore-0.8.0rc0/te-none/driver-none")
    assert (answer["base"], answer["twin"]) == ("image", "its twin is torch-2.4.0")
    assert answer["failures"][0]["night"][0]["here"] == "ngc-24.07 is not here"
    assert told("ngc-99/mcore-0.8.0/te-none/driver-none")["twin"] == "has no twin"
    assert told("torch-2.5.1/mcore-0.8.0/te-none/driver-none")["twin"] == "stands for no image"


@pytest.mark.parametrize(
    ("id", "what", "hint"),
    [
        ("torch-2.4.0", "not a cell id", "BASE/mcore-VERSION"),
        ("torch-2.4/mcore-0.8.0/te-none/driver-none", "no such base", "torch-2.4.0"),
        ("torch-2.4.0/mcore-0.80/te-none/driver-none", "no such megatron-core release", "did you mean 0.8.0"),
        ("torch-2.4.0/mcore-0.8.0/te-new/driver-none", "not a Transformer Engine version", "1.8"),
        ("torch-2.4.0/mcore-0.8.0/te-none/driver-new", "not a driver version", "535"),
    ],
)
def test_a_cell_that_can_not_be_is_told_with_a_hint(id: str, what: str, hint: str) -> None:
    with pytest.raises(MatrixError) as caught:
        told(id)
    assert what == caught.value.what
    assert hint in str(caught.value)


def test_the_explanation_is_plain_json() -> None:
    answer = told("torch-2.4.0/mcore-0.8.0/te-none/driver-none")
    assert answer == json.loads(json.dumps(answer))
    assert list(answer) == ["cell", "base", "torch", "python", "twin", "excluded", "failures"]
    first = answer["failures"][0]
    assert list(first) == ["failure", "title", "expectation", "rule", "reason", "masked", "night"]
    assert list(first["night"][0]) == ["case", "level", "expectation", "why", "here"]


def test_the_explanation_reads_as_text() -> None:
    lines = render(explained("torch-2.4.0/mcore-0.8.0/te-none/driver-none")).splitlines()
    assert lines[:2] == [
        "torch-2.4.0/mcore-0.8.0/te-none/driver-none",
        "  base: wheels, torch 2.4.0, Python 3.10; stands for ngc-24.07",
    ]
    assert "    rule:     torch >=2.4 and mcore ==0.8.0" in lines
    assert "    masked:   break: it fails before; it is not planned here" in lines
    assert "    night:    tp2 at level cpu (runs)" in lines
    assert "    night:    not in it" in lines


def test_what_is_said_to_run_here_is_not_unavailable_in_a_run() -> None:
    known = catalog(
        failure(affected=(clause(mcore="==0.8.0rc0"),)),
        containers=(image("ngc-24.07", "2.4.0a0+3bcc3cddb5"),),
        stacks=(stack("break", "ngc-24.07", "0.8.0rc0"),),
    )
    (item,) = night(known, pairwise)
    for lack, here in (("needs podman", "needs podman"), ("", "runs")):
        (one,) = explain(known, item.cell.id, [item], dict.fromkeys([item], lack).__getitem__).failures[0].night
        assert here == one.here


def test_a_report_s_cell_has_the_report_s_hardware() -> None:
    entry = failure("hardware", affected=(clause(sm="<9"),))
    known = catalog(entry, stacks=(stack("hardware", "torch-2.4.0", "0.8.0", sm="8.0"),))
    for id, expectation in (("0.8.0", "broken"), ("0.7.0", "unknown")):
        answer = explain(known, f"torch-2.4.0/mcore-{id}/te-none/driver-none", [], lacks)
        assert expectation == answer.failures[0].expectation.value


@pytest.mark.parametrize("core", ["none", "0.4.0"])
def test_a_cell_of_a_base_alone_and_one_of_a_build_can_be_asked_for(core: str) -> None:
    """The real catalog plans both on debian-13."""
    answer = explain(real(), f"debian-13/mcore-{core}/te-none/driver-none", [], lacks)
    assert answer.base == "image"
