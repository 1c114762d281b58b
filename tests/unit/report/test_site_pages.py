"""The pages that people paste: what each answers, and its address."""

from __future__ import annotations

import pytest

from matrix.catalog.distributions import Distributions, IndexedRelease, Package
from matrix.catalog.schema import VersionText
from matrix.report.site_pages import SitePage, pages
from tests.unit.catalogs import catalog, clause, failure, image
from tests.unit.report.samples import stack_map

BREAKS = failure("dud-assertion", affected=(clause(mcore="<0.9"),), works=(clause(mcore=">=0.9"),))
KNOWN = catalog(BREAKS, containers=(image("ngc-24.07", "2.4.0a0+ab12cd3", "1.4"), image("ngc-24.08", None)))
TRAINERS = Distributions(
    (Package("trainer", framework=True, extras=("mcore",)), Package("numpy")),
    (
        IndexedRelease("trainer", VersionText("1.0"), requires=('megatron-core>=0.8; extra == "mcore"', "numpy<2")),
        IndexedRelease("trainer", VersionText("0.9")),
        IndexedRelease("numpy", VersionText("1.26.0")),
    ),
)


def made(distributions: Distributions = TRAINERS) -> dict[str, SitePage]:
    return {page.path: page for page in pages(stack_map(KNOWN), distributions)}


def test_page_of_a_release_states_what_breaks() -> None:
    page = made()["megatron-core/0.8.0.html"]
    assert page.json == "api/1/megatron-core/0.8.0.json"
    assert page.sentence.startswith("megatron-core 0.8.0, with 2 containers: 2 breaks")
    assert {heading: [one.id for one in ids] for heading, ids in page.failures.items() if ids} == {
        "Known breaks": ["dud-assertion"]
    }
    assert page.command == 'megatrix check "mcore=0.8.0"'


def test_page_of_an_image_has_each_release() -> None:
    page = made()["container/ngc-24.07.html"]
    assert [(pair.name, pair.failures) for pair in page.pairs] == [
        ("0.9.0", []),
        ("0.8.0", ["dud-assertion"]),
        ("0.7.0", ["dud-assertion"]),
    ]
    assert page.pairs[0].link == "../stack/ngc-24.07/0.9.0.html"


def test_stack_of_an_unknown_image_has_no_page() -> None:
    """Its link asks the first page, which states what is not known."""
    page = made()["container/ngc-24.08.html"]
    assert page.pairs[0].link == "../index.html#from=base%3Dngc-24.08+mcore%3D0.9.0"
    assert not [path for path in made() if path.startswith("stack/ngc-24.08")]


@pytest.mark.parametrize(
    ("version", "fitting", "sentence"),
    [
        ("1.0", ["0.9.0", "0.8.0"], "trainer 1.0 fits megatron-core 0.8.0 .. 0.9.0, as its metadata declares."),
        ("0.9", [], "trainer 0.9 declares no recorded megatron-core, as its metadata declares."),
    ],
)
def test_page_of_a_framework_lists_its_releases(version: str, fitting: list[str], sentence: str) -> None:
    page = made()[f"framework/trainer-{version}.html"]
    assert (page.fitting, page.sentence) == (fitting, sentence)


def test_package_that_is_no_framework_has_no_page() -> None:
    assert not [path for path in made() if "numpy" in path]
