"""Known failures of a stack."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from matrix.catalog.failure import Expectation, Level
from matrix.catalog.loading import load
from matrix.catalog.model import Catalog
from matrix.check.compat import compat, parse_stack, render_findings, unlisted
from matrix.errors import MatrixError
from tests.founding import CALL, SAVE, SHIFTED_CALL


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    """Return the project's own catalog."""
    return load()


def expectations(catalog: Catalog, stack: str) -> dict[str, str]:
    """Return failure -> expectation."""
    return {one.failure.id: one.expectation.value for one in compat(catalog, parse_stack(catalog, stack), {})}


def test_the_reported_stack_breaks_and_the_fix_works(catalog: Catalog) -> None:
    assert expectations(catalog, "mcore=0.8.0 torch=2.4.0")[SAVE] == "broken"
    assert expectations(catalog, "mcore=0.9.0 torch=2.4.0")[SAVE] == "works"


def test_an_image_has_its_torch_and_te(catalog: Catalog) -> None:
    stack = parse_stack(catalog, "base=ngc-24.07 mcore=0.9.0rc0+094d66b")

    assert (stack.torch, stack.te) == ("2.4.0a0+3bcc3cddb5", "1.8.0+37280ec")
    assert expectations(catalog, "base=ngc-24.07 mcore=0.9.0rc0+094d66b")[CALL] == "broken"


def test_a_missing_axis_makes_a_failure_unknown(catalog: Catalog) -> None:
    assert expectations(catalog, "torch=2.4.0")[SAVE] == "unknown"


def test_broken_failures_come_first(catalog: Catalog) -> None:
    """With the levels that ran on this machine."""
    levels = {SAVE: frozenset({Level.CPU})}

    found = compat(catalog, parse_stack(catalog, "mcore=0.8.0 torch=2.4.0"), levels)

    assert found[0].expectation is Expectation.BROKEN
    assert found[0].seen == ["cpu"]


def test_answers_are_plain_json(catalog: Catalog) -> None:
    levels = {SAVE: frozenset({Level.GPU, Level.CPU})}
    (found,) = (
        one.to_json()
        for one in compat(catalog, parse_stack(catalog, "mcore=0.8.0 torch=2.4.0"), levels)
        if one.failure.id == SAVE
    )
    assert found == json.loads(json.dumps(found))
    assert list(found) == [
        "failure", "title", "expectation", "reason", "axes", "levels", "fix", "workarounds", "references",
    ]  # fmt: skip
    assert (found["expectation"], found["axes"], found["levels"]) == ("broken", ["torch", "mcore"], ["cpu", "gpu"])


@pytest.mark.parametrize(
    ("stack", "message"),
    [
        ("mcre=0.8.0", "did you mean mcore"),
        ("mcore", "not a stack"),
        ("mcore=", "not a stack"),
        ("mcore=new", "not a version"),
        ("mcore=0.8.0 mcore=0.9.0", "named twice"),
        ("base=ngc-2407", "did you mean ngc-24.07"),
        ("", "no stack"),
    ],
)
def test_an_invalid_stack_is_an_error(catalog: Catalog, stack: str, message: str) -> None:
    with pytest.raises(MatrixError, match=message):
        parse_stack(catalog, stack)


def test_unlisted_findings_of_level_contract_are_reported(catalog: Catalog) -> None:
    stack = parse_stack(catalog, "mcore=0.8.0 te=1.10.0")
    listed = replace(catalog, failures=tuple(one for one in catalog.failures if one.id != SHIFTED_CALL))

    assert {one.kind.value for one in unlisted(listed, stack)} == {"misbound"}
    assert "lands on 'model_layers'" in render_findings(unlisted(listed, stack), stack)


def test_a_listed_misbound_call_is_not_unlisted(catalog: Catalog) -> None:
    found = unlisted(catalog, parse_stack(catalog, "mcore=0.8.0 te=1.10.0"))

    assert not [one for one in found if "lands on 'model_layers'" in one.message]


def test_failures_of_the_catalog_are_not_unlisted(catalog: Catalog) -> None:
    stack = parse_stack(catalog, "mcore=0.17.1 te=2.9.0")

    assert unlisted(catalog, stack) == []
    assert "nothing else" in render_findings([], stack)


@pytest.mark.parametrize("torch", ["2.4.0a0+3bcc3cddb5", "2.4.0a0+3bcc3cddb5.nv24.07"])
def test_torch_of_a_container_stands_for_it(catalog: Catalog, torch: str) -> None:
    """It sorts below 2.4.0; the rule that knows it names its container."""
    assert expectations(catalog, f"torch={torch} mcore=0.8.0")[SAVE] == "broken"


@pytest.mark.parametrize(
    ("written", "same"),
    [
        ("mcore==0.8.0", "mcore=0.8.0"),
        ("mcore=core_v0.8.0", "mcore=0.8.0"),
        ("nvcr.io/nvidia/pytorch:24.07-py3", "base=ngc-24.07"),
        ("base=nvcr.io/nvidia/pytorch:24.07-py3", "base=ngc-24.07"),
    ],
)
def test_usual_ways_of_writing_are_read(catalog: Catalog, written: str, same: str) -> None:
    """A line of a requirements file, a tag of Megatron-LM, the name of an image."""
    assert parse_stack(catalog, written) == parse_stack(catalog, same)


def test_example_of_an_error_is_of_its_axis(catalog: Catalog) -> None:
    with pytest.raises(MatrixError, match="such as driver=535"):
        parse_stack(catalog, "driver=abc")
