"""What is known to break in a stack."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from matrix.catalog.failure import Expectation, Level
from matrix.catalog.loading import load
from matrix.catalog.model import Catalog
from matrix.check.compat import compat, parse_stack, render, render_findings, unlisted
from matrix.errors import MatrixError
from tests.founding import CALL, HARDWARE, SAVE, SHIFTED_CALL


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    """Return the project's own catalog."""
    return load()


def expectations(catalog: Catalog, stack: str) -> dict[str, str]:
    """Return failure -> expectation."""
    return {one.failure.id: one.expectation.value for one in compat(catalog, parse_stack(catalog, stack), {})}


def test_the_report_s_stack_breaks_and_the_fixed_release_does_not(catalog: Catalog) -> None:
    assert expectations(catalog, "mcore=0.8.0 torch=2.4.0")[SAVE] == "broken"
    assert expectations(catalog, "mcore=0.9.0 torch=2.4.0")[SAVE] == "works"


def test_an_image_brings_its_torch_and_its_transformer_engine(catalog: Catalog) -> None:
    stack = parse_stack(catalog, "base=ngc-24.07 mcore=0.9.0rc0+094d66b")

    assert (stack.torch, stack.te) == ("2.4.0a0+3bcc3cddb5", "1.8.0+37280ec")
    assert expectations(catalog, "base=ngc-24.07 mcore=0.9.0rc0+094d66b")[CALL] == "broken"


def test_an_axis_that_is_not_named_is_known_of_by_nobody(catalog: Catalog) -> None:
    assert expectations(catalog, "torch=2.4.0")[SAVE] == "unknown"


def test_what_breaks_comes_first_with_the_level_and_the_way_round(catalog: Catalog) -> None:
    levels = {SAVE: frozenset({Level.CPU})}

    told = compat(catalog, parse_stack(catalog, "mcore=0.8.0 torch=2.4.0"), levels)

    assert told[0].expectation is Expectation.BROKEN
    assert "seen here at level cpu" in render(told)
    assert "way round: Stay on torch < 2.4" in render(told)


def test_answers_are_plain_json(catalog: Catalog) -> None:
    levels = {SAVE: frozenset({Level.GPU, Level.CPU})}
    (told,) = (
        one.to_json()
        for one in compat(catalog, parse_stack(catalog, "mcore=0.8.0 torch=2.4.0"), levels)
        if one.failure.id == SAVE
    )
    assert told == json.loads(json.dumps(told))
    assert list(told) == [
        "failure", "title", "expectation", "reason", "axes", "levels", "fix", "workarounds", "references",
    ]  # fmt: skip
    assert (told["expectation"], told["axes"], told["levels"]) == ("broken", ["torch", "mcore"], ["cpu", "gpu"])


@pytest.mark.parametrize(
    ("stack", "said"),
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
def test_a_stack_that_can_t_be_read_is_an_error(catalog: Catalog, stack: str, said: str) -> None:
    with pytest.raises(MatrixError, match=said):
        parse_stack(catalog, stack)


def test_what_level_contract_finds_beyond_the_catalog_is_told(catalog: Catalog) -> None:
    stack = parse_stack(catalog, "mcore=0.8.0 te=1.10.0")
    listed = replace(catalog, failures=tuple(one for one in catalog.failures if one.id != SHIFTED_CALL))

    assert {one.kind.value for one in unlisted(listed, stack)} == {"misbound"}
    assert "lands on 'model_layers'" in render_findings(unlisted(listed, stack), stack)


def test_an_argument_that_lands_elsewhere_is_known_for_the_catalog_s(catalog: Catalog) -> None:
    found = unlisted(catalog, parse_stack(catalog, "mcore=0.8.0 te=1.10.0"))

    assert not [one for one in found if "lands on 'model_layers'" in one.message]


def test_what_the_catalog_has_is_not_told_twice(catalog: Catalog) -> None:
    stack = parse_stack(catalog, "mcore=0.17.1 te=2.9.0")

    assert unlisted(catalog, stack) == []
    assert "nothing else" in render_findings([], stack)


@pytest.mark.parametrize(
    ("stack", "said"),
    [
        ("te=1.9.0 driver=470 sm=8.0", f"{HARDWARE}: on SM80 userbuffers go by CUDA IPC, whatever the driver"),
        ("te=2.17.1 driver=535 sm=9.0", f"  {HARDWARE}: multicast, where the GPUs are on an NVSwitch"),
        ("te=2.17.1 driver=580 sm=8.0", f"BREAKS {HARDWARE}"),
        ("te=1.12.0 driver=525 sm=9.0", f"BREAKS {HARDWARE}"),
        ("te=1.13.0 driver=470", f"BREAKS {HARDWARE}"),
    ],
)  # fmt: skip
def test_a_driver_is_told_what_it_means(catalog: Catalog, stack: str, said: str) -> None:
    assert said in render(compat(catalog, parse_stack(catalog, stack), {}))
