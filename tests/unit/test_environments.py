"""The tox environments: one per base, and one per Transformer Engine line that people type."""

from __future__ import annotations

import re

import pytest

from matrix.environments import CELL_REQUIRES, base_name, environments, left_out, te_lines
from tests.unit.catalogs import catalog, image, real, releases, wheels

SMALL = catalog(
    torches=("2.3.1", "2.4.0", "2.4.1"),
    transformer_engine=releases(["1.8", "1.9", "1.10", "2.0"]),
    containers=(
        image("ngc-24.05", "2.4.0a0+07cecf4168", "1.8"),
        image("ngc-24.07", "2.4.0a0+3bcc3cddb5", "1.8.0+37280ec"),
        image("ngc-24.08", "2.9.0a0+872d972e41", "1.9"),
    ),
    common_requires=("numpy<2",),
)


@pytest.mark.parametrize(
    ("name", "base", "te"),
    [
        ("torch2.4.0", "torch-2.4.0", ""),
        ("te19", "torch-2.5.1", "1.9"),
        ("te18", "torch-2.4.0", "1.8"),
        ("te19-torch23", "torch-2.3.1", "1.9"),
        ("te19-torch24", "torch-2.4.0", "1.9"),
        ("te110-torch213", "torch-2.13.0", "1.10"),
    ],
)
def test_the_names_that_are_documented_resolve(name: str, base: str, te: str) -> None:
    made = environments(real())[name]
    assert (name, base, te) == (made.name, made.base.id, made.te)


def test_every_base_has_an_environment() -> None:
    names = [name for name, one in environments(SMALL).items() if not one.te]
    assert [base_name(base.id) for base in SMALL.wheels] == names == ["torch2.3.1", "torch2.4.0", "torch2.4.1"]


def test_a_line_is_the_twin_of_the_newest_image_that_shipped_it() -> None:
    made = environments(SMALL)
    assert made["te18"].base == wheels("2.4.0")
    assert "the twin of ngc-24.07 (TE inferred)" in made["te18"].description


def test_a_line_is_on_the_first_base_of_each_torch_minor() -> None:
    made = environments(SMALL)
    bases = {name: made[name].base.torch for name in made if name.startswith("te20-")}
    assert bases == {"te20-torch23": "2.3.1", "te20-torch24": "2.4.0"}


def test_lines_come_in_the_order_of_their_versions() -> None:
    assert list(te_lines(SMALL)) == ["1.8", "1.9", "1.10", "2.0"]


def test_an_environment_has_the_torch_of_its_base_and_what_a_cell_needs() -> None:
    assert ("torch==2.4.0", "numpy<2", *CELL_REQUIRES) == environments(SMALL)["torch2.4.0"].requirements


def test_a_line_without_an_image_or_a_base_is_left_out_with_the_reason() -> None:
    reasons = left_out(SMALL)
    assert {"te19", "te110", "te20"} == set(reasons)
    assert "no image of the catalog is known to ship Transformer Engine 1.10" in reasons["te110"]
    assert "no wheels base stands for ngc-24.08 (torch 2.9.0a0+872d972e41)" in reasons["te19"]
    assert set() == set(reasons) & set(environments(SMALL))


def test_what_a_left_out_line_proposes_is_an_environment() -> None:
    proposed = [re.findall(r"te\d+-torch\d+", reason) for reason in left_out(SMALL).values()]
    assert [name for names in proposed for name in names if name not in environments(SMALL)] == []


def test_what_the_real_catalog_proposes_is_an_environment() -> None:
    proposed = {name for reason in left_out(real()).values() for name in re.findall(r"te\d+-torch\d+", reason)}
    assert set() == proposed - set(environments(real()))
