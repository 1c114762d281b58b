"""The night: the cases in it, the cases left out, and the reasons of each."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.ground.cases.cells import masked_by
from matrix.ground.catalog.failure import Build, CaseNeed, Expectation, Failure, Level, NightShare, OpenPackage, Pick
from matrix.ground.catalog.model import Catalog, Release
from matrix.ground.catalog.schema import Identifier, VersionText
from matrix.ground.catalog.stack import ABSENT, BASE, MCORE, TE, TORCH, WRITER_MCORE, WRITER_TE, Cell
from matrix.ground.catalog.stack import short as component_short
from matrix.ground.catalog.versions import Range, position
from matrix.ground.verdicts.planned import Planned, Reason, ReasonKind
from matrix.prove.planning.night import (
    everything,
    newest_patches,
    night,
    night_cells,
    of_base,
    of_source,
    pairwise,
)
from matrix.prove.planning.packing import ranks_of_value
from matrix.prove.provision.project import ROOT
from tests.profiles import tries
from tests.unit import catalogs
from tests.unit.catalogs import (
    CORES,
    ENGINES,
    TORCHES,
    case,
    catalog,
    clause,
    exclusion,
    failure,
    image,
    masked,
    reader,
    releases,
    stack,
    wheels,
)

ENGINE_TOO = (BASE, MCORE, TE)
BROKEN = failure(
    affected=(clause(mcore="<0.9", torch=">=2.4"),),
    works=(clause(mcore=">=0.9"), clause(torch="<2.4")),
    case=(case("tp2"), case("pp2")),
)


def no_pairs(*_: object) -> list[dict[str, Any]]:
    """Return an empty covering array, which leaves the cases of the boundary alone."""
    return []


def short(item: Planned) -> str:
    return f"{item.cell.stack[TORCH]} {item.cell.stack[MCORE]} {item.case}"


def whys(known: Catalog) -> dict[str, tuple[str, ...]]:
    return {short(item): tuple(map(str, item.why)) for item in night(known, no_pairs)}


def test_boundary_is_last_bad_and_first_good() -> None:
    by_torch = "boundary: torch 2.3.1 works | 2.4.0 broken"
    by_core = "boundary: mcore 0.8.0 broken | 0.9.0 works"
    expected = {
        "2.3.1 0.7.0": (by_torch,),
        "2.3.1 0.8.0": (by_torch,),
        "2.4.0 0.7.0": (by_torch,),
        "2.4.0 0.8.0": (by_torch, by_core),
        "2.4.0 0.9.0": (by_core,),
        "2.5.1 0.8.0": (by_core,),
        "2.5.1 0.9.0": (by_core,),
    }
    every_case = {f"{cell} {name}": why for cell, why in expected.items() for name in ("tp2", "pp2")}
    assert every_case == whys(catalog(BROKEN))


def test_the_te_boundary_is_planned_with_each_core() -> None:
    entry = failure(axes=ENGINE_TOO, affected=(clause(te="<1.9"),), works=(clause(te=">=1.9"),))
    known = catalog(entry, torches=("2.4.0",))
    chosen = {(item.cell.stack[MCORE], item.cell.stack[TE]) for item in night(known, no_pairs)}
    assert {(core, engine) for core in CORES for engine in ("1.8", "1.9")} == chosen


def test_a_stack_is_always_in_the_night() -> None:
    """Also on a base that is not for the night, in a masked cell, and without a reproduction."""
    other = failure("other", affected=(clause(mcore="==0.8.0rc0"),), masked=(masked("break"),), case=())
    stacks = (stack("other", "ngc-24.07", "0.8.0rc0", te="1.8.0+37280ec", driver="470.161.03", gpus=8),)
    known = catalog(BROKEN, other, stacks=stacks, containers=(image("ngc-24.07", "2.4.0a0+3bcc3cddb5"),))
    (item,) = [item for item in night(known, no_pairs) if item.failure == "other"]
    assert item.key == "ngc-24.07/mcore-0.8.0rc0/te-1.8.0+37280ec/driver-470.161.03 other report gpu"
    assert (
        item.reproducible,
        item.gpus,
        item.expectation,
        item.why,
    ) == (False, 8, Expectation.BROKEN, (Reason(ReasonKind.STACK, "Some#1: as reported"),))
    assert item.ranks == 8


def test_stack_has_the_gpus_of_the_report() -> None:
    """The case takes one; a control that is masked there is no part of it."""
    mask = failure("mask", affected=(clause(),), case=())
    control = replace(masked("mask"), cases=(Identifier("pp2"),))
    known = catalog(replace(BROKEN, masked=(control,)), mask, stacks=(stack("break", "torch-2.4.0", "0.8.0", gpus=4),))
    stacks = [item for item in night(known, no_pairs) if item.why[0].kind is ReasonKind.STACK]
    assert [(item.case, item.gpus, item.reproducible) for item in stacks] == [("tp2", 4, True)]


def test_night_is_in_the_order_of_versions() -> None:
    """By base, failure, megatron-core as a version, then Transformer Engine and case."""
    entry = failure(axes=ENGINE_TOO, works=(clause(),), case=(case("b"), case("a")))
    known = catalog(
        replace(entry, id=Identifier("z")),
        replace(entry, id=Identifier("y")),
        torches=("2.5.1", "2.4.0"),
        megatron_core=releases(["0.9.0", "0.10.0"]),
        transformer_engine=releases(["1.8", "1.9"]),
    )
    order = [
        (item.cell.base, item.failure, position(item.cell.stack[MCORE]), str(item.cell.stack[TE]), item.case)
        for item in night(known, every_pair)
    ]
    assert len(order) == 2 * 2 * 2 * 2 * 2
    assert order == sorted(order, key=lambda row: (row[0] != "torch-2.5.1", *row[1:]))


def every_pair(factors: Any, keys: Any, allowed: Any) -> list[dict[str, Any]]:
    """Return all combinations that are allowed, which is a covering array too."""
    rows = [dict(zip(keys, row, strict=True)) for row in itertools.product(*(factors[key] for key in keys))]
    return [row for row in rows if allowed(row)]


def test_night_below_level_gpu_has_no_image() -> None:
    named = replace(image("ngc-24.08", "2.4.0a0", "1.9.0"), night="ships it")
    known = catalog(replace(BROKEN, case=(ON_GPU,)), containers=(named,))
    bases = {levels: {item.cell.base for item in night(known, no_pairs, levels)} for levels in ((Level.CPU,), ALL)}
    assert ("ngc-24.08" in bases[(Level.CPU,)], "ngc-24.08" in bases[ALL]) == (False, True)


ALL = tuple(Level)


def test_picked_cell_has_the_cases_with_an_expectation() -> None:
    """Those that the pick names, or all."""
    picks = (
        Pick("torch-2.4.0", {MCORE: VersionText("0.9.0")}, reason="by hand"),  # type: ignore[arg-type]
        Pick("torch-2.4.0", {MCORE: VersionText("0.7.0")}, (Identifier("pp2"),), reason="one"),  # type: ignore[arg-type]
    )
    entry = failure(
        affected=(clause(mcore="<0.9"), clause(mcore=">=0.9", cases=["pp2"])),
        case=(case("tp2"), case("pp2")),
        pick=picks,
    )
    planned = [item for item in night(catalog(entry, torches=("2.4.0",)), no_pairs) if "picked" in str(item.why[-1])]
    assert [(item.cell.stack[MCORE], item.case, item.why[-1].text) for item in planned] == [
        ("0.7.0", "pp2", "one"),
        ("0.9.0", "pp2", "by hand"),
    ]


def test_covering_array_names_its_factors() -> None:
    """Besides base, megatron-core and Transformer Engine those that some cell has: its packages."""
    package = OpenPackage("sentinels", "5.0")  # type: ignore[arg-type]
    entry = failure(works=(clause(),), package=(package,))
    reasons = {reason.text for item in night(catalog(entry), every_pair) for reason in item.why}
    assert reasons == {"base x mcore x te x packages x case"}


def test_share_of_the_night_keeps_builds() -> None:
    build = Build(MCORE, "0.9.0rc0+0a1b2c3", "megatron-lm@0a1b2c3", "")  # type: ignore[arg-type]
    share = NightShare("too many", releases={MCORE: (VersionText(CORES[0]),)})
    entry = failure(works=(clause(),), night=share, build=(build,))
    assert {cell.stack[MCORE] for cell in night_cells(catalog(entry), entry)} == {CORES[0], build.version}


def test_a_stack_on_the_boundary_has_both_reasons() -> None:
    known = catalog(BROKEN, stacks=(stack("break", "torch-2.4.0", "0.8.0"),))
    assert list(whys(known)["2.4.0 0.8.0 tp2"]) == [
        "stack of Some#1: as reported",
        "boundary: torch 2.3.1 works | 2.4.0 broken",
        "boundary: mcore 0.8.0 broken | 0.9.0 works",
    ]


def test_masked_cells_are_left_out() -> None:
    mask = failure("mask", affected=(clause(torch=">=2.5"),), works=(clause(torch="<2.5"),))
    known = catalog(replace(BROKEN, masked=(masked("mask"),)), mask)
    assert {"2.3.1", "2.4.0"} == {item.cell.stack[TORCH] for item in night(known, pairwise) if item.failure == "break"}


def test_the_boundary_skips_excluded_cells() -> None:
    known = catalog(BROKEN, exclusions=(exclusion("can't be", mcore="==0.8.0"),))
    assert "boundary: mcore 0.7.0 broken | 0.9.0 works" in whys(known)["2.4.0 0.7.0 tp2"]
    assert {"0.7.0", "0.9.0"} == {item.cell.stack[MCORE] for item in night(known, pairwise)}


def test_cells_without_an_expectation_are_left_out() -> None:
    known = catalog(failure(affected=(clause(mcore="<0.8"),), works=(clause(mcore=">=0.9"),)))
    assert {"0.7.0", "0.9.0"} == {item.cell.stack[MCORE] for item in night(known, pairwise)}


def test_bases_not_for_the_night_are_left_out() -> None:
    known = catalog(BROKEN, wheels=(wheels("2.3.1"), wheels("2.4.0", night=""), wheels("2.5.1")))
    assert {"2.3.1", "2.5.1"} == {item.cell.stack[TORCH] for item in night(known, pairwise)}


def test_cases_at_another_level_are_left_out() -> None:
    known = catalog(replace(BROKEN, case=(case("tp2", (Level.CPU, Level.GPU)),)))
    assert {Level.CPU} == {item.level for item in night(known, pairwise)}
    assert {Level.GPU} == {item.level for item in night(known, pairwise, (Level.GPU,))}


def test_a_failure_without_a_reproduction_has_no_cases() -> None:
    assert night(catalog(replace(BROKEN, case=())), pairwise) == []


def test_a_night_share_limits_bases_and_engines() -> None:
    share = NightShare("too many", ("torch-2.4.0",), {TE: ("1.8", "1.9")})  # type: ignore[arg-type, dict-item]
    entry = failure(axes=ENGINE_TOO, affected=(clause(te="<1.9"),), works=(clause(te=">=1.9"),), night=share)
    cells = night_cells(catalog(entry), entry)
    assert {("torch-2.4.0", core, engine) for core in CORES for engine in ("1.8", "1.9")} == {
        (cell.base, cell.stack[MCORE], cell.stack[TE]) for cell in cells
    }


def test_a_night_share_limits_releases() -> None:
    entry = failure(works=(clause(),), night=NightShare("too many", releases={MCORE: (VersionText(CORES[0]),)}))
    assert {(f"torch-{torch}", CORES[0]) for torch in TORCHES} == {
        (cell.base, cell.stack[MCORE]) for cell in night_cells(catalog(entry), entry)
    }


def test_a_night_share_limits_writers() -> None:
    entry = failure(
        axes=(BASE, TE, WRITER_TE),
        works=(clause(),),
        case=(replace(case("load"), write="write"),),
        night=NightShare("too many", releases={TE: (VersionText("1.8"), VersionText("1.9"))}),
    )
    pairs = {(cell.stack[TE], cell.stack[WRITER_TE]) for cell in night_cells(catalog(entry), entry)}
    assert pairs == {(engine, writer) for engine in ("1.8", "1.9") for writer in ("1.8", "1.9")}


def test_a_case_is_planned_with_its_releases_only() -> None:
    newer = replace(case("slices"), releases={MCORE: Range(f">={CORES[1]}")})
    known = catalog(failure(works=(clause(),), case=(case("sample"), newer)))
    expected = {("sample", core) for core in CORES} | {("slices", core) for core in CORES[1:]}
    assert expected == {(item.case, item.cell.stack[MCORE]) for item in everything(known, (Level.CPU,))}
    assert expected == {(item.case, item.cell.stack[MCORE]) for item in night(known, pairwise)}


def test_a_pairwise_row_has_one_case() -> None:
    works = failure(works=(clause(),), case=(case("tp2"), case("pp2")))
    items = night(catalog(works), pairwise)
    assert {(Reason(ReasonKind.PAIRWISE, "base x mcore x te x case"),)} == {item.why for item in items}
    assert {(torch, core) for torch in TORCHES for core in CORES} == {
        (i.cell.stack[TORCH], i.cell.stack[MCORE]) for i in items
    }
    assert {(core, name) for core in CORES for name in ("tp2", "pp2")} == {(i.cell.stack[MCORE], i.case) for i in items}
    assert len(items) < len(everything(catalog(works), (Level.CPU,)))


@pytest.mark.parametrize("levels", [(Level.CONTRACT,), (Level.CPU,)])
def test_stack_needs_level_of_case_and_night(levels: tuple[Level, ...]) -> None:
    entry = replace(BROKEN, case=(case("read", (Level.CONTRACT,)),))
    known = catalog(entry, stacks=(stack("break", "torch-2.4.0", "0.8.0"),))
    assert {Level.CONTRACT} & set(levels) == {item.level for item in night(known, no_pairs, levels)}


@pytest.mark.parametrize(
    "levels",
    [
        (Level.CONTRACT, Level.CPU, Level.GPU),
        (Level.GPU, Level.CPU),
    ],
    ids=lambda levels: "-".join(level.value for level in levels),
)
def test_stack_in_image_uses_highest_level(levels: tuple[Level, ...]) -> None:
    entry = replace(BROKEN, case=(case("tp2", levels),))
    stacks, images = (stack("break", "ngc-24.07", "0.8.0"),), (image("ngc-24.07", "2.4.0a0+3bcc3cddb5"),)
    known = catalog(entry, stacks=stacks, containers=images)
    assert [item.level for item in night(known, no_pairs) if item.cell.base == "ngc-24.07"] == [Level.GPU]


def cell(core: str, base: str = "torch-2.4.0", te: str = "none") -> Cell:
    return catalogs.cell(base, torch="2.4.0", mcore=core, te=te)


def test_newest_patches_keeps_builds_and_newest_patches() -> None:
    cells = [cell(core) for core in ("0.12.0", "0.12.3", "0.9.0", "0.10.0", "0.9.0rc0+094d66b", "0.9.0rc0+98b43c9")]
    kept = ["0.9.0rc0+094d66b", "0.9.0rc0+98b43c9", "0.9.0", "0.10.0", "0.12.3"]
    assert kept == [one.stack[MCORE] for one in newest_patches(cells)]


def test_the_newest_patch_is_per_base_and_engine() -> None:
    cells = [cell("0.12.0"), cell("0.12.3", base="torch-2.5.1"), cell("0.12.0", te="1.9"), cell("0.12.1", te="1.9")]
    kept = {("torch-2.4.0", "0.12.0", ABSENT), ("torch-2.5.1", "0.12.3", ABSENT), ("torch-2.4.0", "0.12.1", "1.9")}
    assert kept == {(one.base, one.stack[MCORE], one.stack[TE]) for one in newest_patches(cells)}


def test_a_patch_not_for_the_base_is_skipped() -> None:
    cores = (*releases(["0.9.0"]), Release("0.9.1", requires={"torch": Range(">=2.5")}))  # type: ignore[arg-type]
    known = catalog(BROKEN, megatron_core=cores)
    newest = {one.base: one.stack[MCORE] for one in night_cells(known, BROKEN)}
    assert newest == {"torch-2.3.1": "0.9.0", "torch-2.4.0": "0.9.0", "torch-2.5.1": "0.9.1"}


VERSIONS = {TORCH: TORCHES, MCORE: CORES, TE: ENGINES}
BOUNDS = {
    component_short(axis): st.builds(
        "{}{}".format, st.sampled_from(["<", "<=", ">", ">=", "=="]), st.sampled_from(versions)
    )
    for axis, versions in VERSIONS.items()
}
CLAUSES = st.lists(
    st.fixed_dictionaries({}, optional=BOUNDS).map(lambda bounds: clause(**dict[str, Any](bounds))), max_size=3
).map(tuple)
ENTRIES = st.builds(
    failure,
    axes=st.sampled_from([ENGINE_TOO, ENGINE_TOO[:2]]),
    affected=CLAUSES,
    works=CLAUSES,
    case=st.sampled_from([(case("tp2"),), (case("tp2"), case("pp2"))]),
)


def changes(cells: list[Cell], entry: Any) -> set[Cell]:
    """Return both sides of every change of expectation between neighbours, by comparing all pairs of cells."""
    sides = set()
    for before, after in itertools.permutations(cells, 2):
        differing = [axis for axis in VERSIONS if before.stack[axis] != after.stack[axis]]
        if len(differing) != 1 or entry.expectation(before.stack) is entry.expectation(after.stack):
            continue
        (axis,) = differing
        low, high = position(before.stack[axis]), position(after.stack[axis])
        rest = [other for other in VERSIONS if other != axis]
        same = [one for one in cells if all(one.stack[other] == before.stack[other] for other in rest)]
        if low < high and not any(low < position(one.stack[axis]) < high for one in same):
            sides |= {before, after}
    return sides


@tries(60)
@given(ENTRIES)
def test_every_change_of_expectation_is_planned(entry: Any) -> None:
    known = catalog(entry)
    planned = {(item.cell, item.case) for item in night(known, no_pairs)}
    boundary = changes(night_cells(known, entry), entry)
    assert {(cell, one.name) for cell in boundary for one in entry.case} == planned


def test_level_contract_is_planned_without_torch() -> None:
    entry = failure(
        axes=(MCORE, TE),
        case=(case(levels=[Level.CONTRACT]),),
        affected=(clause(te="<1.9"),),
        works=(clause(te=">=1.9"),),
    )
    items = night(catalog(entry, readers=(reader(),)), pairwise, (Level.CONTRACT,))
    assert {(item.cell.base, item.cell.stack[TORCH]) for item in items} == {("no-torch", ABSENT)}
    assert {(item.cell.stack[TE], item.expectation.value) for item in items} >= {("1.8", "broken"), ("1.9", "works")}
    assert night(catalog(entry, readers=(reader(night=""),)), pairwise, (Level.CONTRACT,)) == []
    at_a_desk = of_base(catalog(entry, readers=(reader(),)), "no-torch", (Level.CONTRACT,))
    assert {item.cell.stack[TE] for item in at_a_desk} == set(ENGINES)


def test_a_control_has_its_own_expectation() -> None:
    entry = failure(
        case=(case(), case("control")),
        affected=(clause(mcore="<0.9"),),
        works=(clause(mcore=">=0.9"), clause(cases=["control"], mcore="<0.9")),
    )
    planned = {(item.cell.stack[MCORE], item.case): item.expectation.value for item in night(catalog(entry), no_pairs)}
    assert planned == {("0.8.0", "tp2"): "broken", ("0.9.0", "tp2"): "works"}  # the control has no boundary
    covered = {(item.case, item.expectation.value) for item in night(catalog(entry), pairwise)}
    assert {("tp2", "broken"), ("tp2", "works"), ("control", "works")} == covered


@tries(40)
@given(ENTRIES)
def test_planned_cases_are_unique_known_and_have_reasons(entry: Any) -> None:
    items = night(catalog(entry), pairwise)
    assert all(item.why for item in items)
    assert len(items) == len({item.key for item in items})
    assert Expectation.UNKNOWN not in {item.expectation for item in items}
    assert {item.cell for item in items} <= set(night_cells(catalog(entry), entry))


@tries(20)
@given(ENTRIES)
def test_every_base_core_and_engine_is_planned(entry: Any) -> None:
    cells, items = night_cells(catalog(entry), entry), night(catalog(entry), pairwise)
    assert {one.base for one in cells} == {item.cell.base for item in items}
    for component in (MCORE, TE):
        assert {one.stack[component] for one in cells} == {item.cell.stack[component] for item in items}


NIGHT = """
import sys; sys.path.insert(0, {root!r})
from matrix.prove.planning.night import pairwise
from matrix.prove.planning.night import night
from tests.unit.prove.planning.test_night import BROKEN, catalog
from tests.profiles import tries
print([(item.key, item.why) for item in night(catalog(BROKEN), pairwise)])
"""


def test_the_night_is_the_same_in_every_process() -> None:
    """Also with another order of sets (PYTHONHASHSEED)."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", NIGHT.format(root=str(ROOT))],
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("1", "2")
    ]
    first, second = (process.communicate()[0] for process in processes)
    assert first == second == f"{[(item.key, item.why) for item in night(catalog(BROKEN), pairwise)]}\n"


def test_a_failure_masks_where_it_is_broken() -> None:
    mask = failure("mask", affected=(clause(mcore="<0.9"),))
    known = catalog(failure(masked=(masked("mask"),)), mask)
    reasons = [masked_by(known, known.failures[0], cell(core).stack) for core in ("0.8.0", "0.9.0")]
    assert reasons == ["mask: it fails before", None]


def test_only_the_masked_control_is_left_out() -> None:
    mask = failure("mask", affected=(clause(mcore="<0.9"),))
    control = replace(masked("mask"), cases=(Identifier("control"),))
    entry = failure(case=(case(), case("control")), affected=(clause(mcore="<0.9"),), works=(clause(mcore=">=0.9"),))
    items = night(catalog(replace(entry, masked=(control,)), mask), pairwise)
    planned = {(item.cell.stack[MCORE], item.case) for item in items}
    assert planned >= {("0.8.0", "tp2"), ("0.9.0", "tp2"), ("0.9.0", "control")}
    assert {core for core, name in planned if name == "control"} == {"0.9.0"}


def test_the_boundary_of_a_package_is_planned() -> None:
    """The last bad and the first good version of an open package, with everything else equal."""
    pins = [OpenPackage("sentinels", version) for version in ("4.0", "4.5", "5.0")]  # type: ignore[arg-type]
    entry = failure(
        package=tuple(pins),
        affected=(clause(packages={"sentinels": ">=5"}),),
        works=(clause(packages={"sentinels": "<5"}),),
    )
    planned = night(catalog(entry, torches=("2.4.0",), megatron_core=releases(["0.8.0"])), no_pairs)
    assert [(item.cell.id, item.packages) for item in planned] == [
        (f"torch-2.4.0/mcore-0.8.0/te-none/driver-none/sentinels-{version}", (f"sentinels=={version}",))
        for version in ("4.5", "5.0")
    ]


def test_a_package_brings_what_it_requires() -> None:
    pin = OpenPackage("sentinels", "5.0", ("tokens==1.0",))  # type: ignore[arg-type]
    entry = failure(package=(pin,), affected=(clause(packages={"sentinels": ">=5"}),))
    planned = everything(catalog(entry, torches=("2.4.0",)), [Level.CPU])
    assert {item.packages for item in planned} == {("sentinels==5.0", "tokens==1.0")}


def test_writers_and_readers_are_combined() -> None:
    """Each pair of releases is a cell; its boundary is planned on either side, and pairs cover the rest."""
    entry = failure(
        axes=(BASE, MCORE, WRITER_MCORE),
        case=(replace(case(), write="save"),),
        affected=(clause(mcore="<0.9", writer_mcore=">=0.9"),),
        works=(clause(mcore=">=0.9"), clause(writer_mcore="<0.9")),
    )
    known = catalog(entry, torches=("2.4.0",))
    assert len(everything(known, [Level.CPU])) == len(CORES) ** 2
    planned = {(item.cell.stack[WRITER_MCORE], item.cell.stack[MCORE]) for item in night(known, no_pairs)}
    assert planned == {
        ("0.9.0", "0.8.0"),
        ("0.9.0", "0.9.0"),
        ("0.8.0", "0.8.0"),
        ("0.8.0", "0.7.0"),
        ("0.9.0", "0.7.0"),
    }
    assert {item.cell.stack[WRITER_MCORE] for item in night(known, pairwise)} == set(CORES)


def test_a_writer_that_can_not_run_is_excluded() -> None:
    reads = replace(case(), write="save")
    axes = (BASE, MCORE, WRITER_MCORE)
    entry = failure(axes=axes, case=(reads,), affected=(clause(mcore=">=0.7"),))
    known = catalog(entry, torches=("2.4.0",), exclusions=(exclusion(mcore="<0.8"),))
    assert {item.cell.stack[WRITER_MCORE] for item in everything(known, [Level.CPU])} == {"0.8.0", "0.9.0"}


def test_an_overridden_range_excludes_no_cell() -> None:
    """A release declares numpy<2, and a user installs numpy 2 nevertheless."""
    new = wheels("2.4.0", requires=("numpy==2.5.5",))
    cores = (Release("0.9.0", requires={"numpy": Range("<2")}),)  # type: ignore[arg-type]
    strict, lenient = failure(affected=(clause(mcore=">=0.9"),)), failure(overrides=("numpy",))
    assert everything(catalog(strict, wheels=(new,), megatron_core=cores), [Level.CPU]) == []
    (item,) = everything(catalog(lenient, wheels=(new,), megatron_core=cores), [Level.CPU])
    assert (item.overrides, item.cell.stack["numpy"]) == (("numpy",), "2.5.5")


def test_a_variant_base_is_no_neighbour() -> None:
    """Its torch is that of the standard base, so there is no boundary of torch between the two."""
    variant = replace(wheels("2.4.0", requires=("numpy==2.5.5",), variant="numpy 2"), id=Identifier("torch-2.4.0-new"))
    standard = wheels("2.4.0", requires=("numpy==1.26.4",))
    entry = failure(affected=(clause(packages={"numpy": ">=2"}),), works=(clause(packages={"numpy": "<2"}),))
    known = catalog(entry, wheels=(standard, variant), megatron_core=releases(["0.9.0"]))
    reasons = {reason.text for item in night(known, no_pairs) for reason in item.why}
    assert reasons == {"numpy 1.26.4 works | 2.5.5 broken"}
    assert known.standard == (standard,)
    assert known.twin(image("ngc-24.07", "2.4.0a0+3bcc3cddb5")) == standard


def in_images(*entries: Failure) -> list[Planned]:
    """Return the night at level gpu on torch 2.4.0 and two images, of which one is for the night."""
    named = image("ngc-24.05", "2.4.0a0", "1.9.0"), replace(image("ngc-24.08", "2.4.0a0", "1.9.0"), night="ships it")
    return night(catalog(*entries, torches=("2.4.0",), containers=named), no_pairs, (Level.GPU,))


ON_GPU = case("tp2", (Level.CPU, Level.GPU))


def test_image_has_both_sides_of_a_change() -> None:
    """The last bad and the first good megatron-core, or the newest where nothing changes."""
    sides = failure("sides", affected=(clause(mcore="<0.9"),), works=(clause(mcore=">=0.9"),), case=(ON_GPU,))
    same = failure("same", affected=(clause(),), case=(ON_GPU,))
    found = [item for item in in_images(sides, same) if item.cell.base != "torch-2.4.0"]
    assert {item.cell.base for item in found} == {"ngc-24.08"}
    assert [(item.failure, item.cell.stack[MCORE], str(item.why[0])) for item in found] == [
        ("same", "0.9.0", "picked: ngc-24.08 ships it"),
        ("sides", "0.8.0", "boundary: mcore 0.8.0 broken | 0.9.0 works"),
        ("sides", "0.9.0", "boundary: mcore 0.8.0 broken | 0.9.0 works"),
    ]


def test_image_uses_its_own_transformer_engine() -> None:
    entry = failure(axes=ENGINE_TOO, affected=(clause(te="<1.9"),), works=(clause(te=">=1.9"),), case=(ON_GPU,))
    assert ("ngc-24.08", "1.9.0") in {(item.cell.base, item.cell.stack[TE]) for item in in_images(entry)}


def test_wheels_have_cases_for_releases_that_they_build() -> None:
    entry = failure(axes=ENGINE_TOO, affected=(clause(te="<1.9"),), works=(clause(te=">=1.9"),), case=(ON_GPU,))
    built = {item.cell.stack[TE] for item in in_images(entry) if item.cell.base == "torch-2.4.0"}
    assert built == {"1.9"}  # not 1.8, of which the index has no source


def test_wheels_have_no_case_for_any_compiled_engine() -> None:
    """No machine can run it there: its cell names no release that is built."""
    needing = replace(ON_GPU, needs=(CaseNeed.COMPILED_TE,))
    entry = failure(affected=(clause(mcore="<0.9"),), works=(clause(mcore=">=0.9"),), case=(needing,))
    assert {item.cell.base for item in in_images(entry)} == {"ngc-24.08"}


def test_share_of_the_night_limits_its_images() -> None:
    """Its bases name the images that they are twins of."""
    entry = failure(affected=(clause(),), case=(ON_GPU,), night=NightShare("one is enough", ("torch-2.3.1",)))  # type: ignore[arg-type]
    assert in_images(entry) == []
    there = replace(entry, night=NightShare("one is enough", ("torch-2.4.0",), {MCORE: (VersionText("0.8.0"),)}))  # type: ignore[arg-type]
    found = [item.cell.stack[MCORE] for item in in_images(there) if item.cell.base == "ngc-24.08"]
    assert found == ["0.8.0"]


READS = failure(
    axes=(BASE, MCORE, WRITER_MCORE),
    case=(replace(case(), write="save"),),
    affected=(clause(mcore="<0.9", writer_mcore=">=0.9"),),
)
NAMES = failure(package=(OpenPackage("sentinels", "5.0"),), affected=(clause(mcore="<0.9"),))  # type: ignore[arg-type]


@pytest.mark.parametrize("entry", [READS, NAMES])
def test_without_writer_or_package_is_no_case(entry: Failure) -> None:
    """A source tree and a build that is no release have neither: the case would run without what it needs."""
    known = catalog(entry, torches=("2.4.0",))
    assert of_source(known, "./tree", "0.8.0", None, [Level.CPU]) == []
    assert of_base(known, "torch-2.4.0", [Level.CPU], core="0.8.0+0123abc") == []
    assert of_base(known, "torch-2.4.0", [Level.CPU], core="0.8.0")


def test_an_installed_engine_keeps_the_writer() -> None:
    known = catalog(READS, torches=("2.4.0",))
    (item,) = of_base(known, "torch-2.4.0", [Level.CPU], core="0.8.0", engine="1.9.0")
    assert item.cell.stack[WRITER_MCORE] == "0.9.0"


def test_each_entry_comes_before_more_releases() -> None:
    """One broken and one working case, of the same name where there is one; those of founding failures first."""
    broken, works, unknown = Expectation.BROKEN, Expectation.WORKS, Expectation.UNKNOWN
    known = catalog(BROKEN)
    plan = [
        ("new", "tp2", works), ("new", "pp2", broken), ("new", "pp2", works), ("new", "pp2", broken),
        ("old", "tp2", broken), ("old", "tp2", works), ("old", "tp2", works), ("odd", "tp2", unknown),
    ]  # fmt: skip
    first = replace(catalogs.planned(known), level=Level.GPU)
    cells = dict.fromkeys(item.cell for item in everything(known, (Level.CPU,)))
    items = [
        replace(first, cell=where, failure=Identifier(name), case=case_name, expectation=expectation)
        for where, (name, case_name, expectation) in zip(cells, plan, strict=False)
    ]
    ranks = ranks_of_value(items, {"old"}, lambda item: True)
    assert [ranks[item.key] for item in items] == [2, 1, 1, 2, 0, 0, 2, 2]
    on_cpu = [replace(item, level=Level.CPU) for item in items]
    assert {*ranks_of_value(on_cpu, {"old"}, lambda item: True).values()} == {2}
