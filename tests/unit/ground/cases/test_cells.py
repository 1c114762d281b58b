"""The cells of a failure, and the cases of a cell with all that they need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from matrix.ground.cases.cells import (
    TE_STAND_IN,
    cells_of,
    expected,
    masked_by,
    on_python,
    package_sets,
    plan_case,
    required_pins,
    revisions,
    run_in,
    source_of,
    stand_in_of,
    versions_of,
)
from matrix.ground.catalog.failure import (
    PARITY,
    Build,
    CaseNeed,
    ContractCall,
    Expectation,
    Failure,
    Level,
    OpenPackage,
    StandIn,
)
from matrix.ground.catalog.model import Image, Release
from matrix.ground.catalog.schema import Identifier
from matrix.ground.catalog.stack import (
    ABSENT,
    BASE,
    DRIVER,
    GPUS,
    MCORE,
    PYTHON,
    SM,
    TE,
    TORCH,
    UNKNOWN,
    WRITER_MCORE,
    Stack,
    Value,
)
from matrix.ground.catalog.versions import Range
from matrix.ground.verdicts.planned import Planned
from tests.unit.catalogs import (
    case,
    catalog,
    clause,
    failure,
    image,
    masked,
    planned,
    reader,
    real,
    releases,
    wheels,
)

ENTRY = failure(affected=(clause(python="<3.12"),), works=(clause(python=">=3.12"),))
CATALOG = catalog(ENTRY)
CASE = planned(CATALOG)


def test_a_case_moves_to_the_environments_python() -> None:
    moved = on_python(CATALOG, CASE, "3.12")

    assert (moved.key, moved.cell) == (CASE.key, CASE.cell.with_({PYTHON: "3.12"}))
    assert (CASE.expectation, moved.expectation) == (Expectation.BROKEN, Expectation.WORKS)


def test_a_given_expectation_stays() -> None:
    unknown = replace(CASE, expectation=Expectation.UNKNOWN)
    assert on_python(CATALOG, unknown, "3.12").expectation is Expectation.UNKNOWN


@pytest.mark.parametrize("python", ["3.10", UNKNOWN])
def test_the_planned_python_or_none_changes_nothing(python: Value) -> None:
    item = replace(CASE, cell=CASE.cell.with_({PYTHON: python}))
    assert on_python(CATALOG, item, "3.10") is item


@pytest.mark.parametrize("entry", real().failures, ids=lambda entry: str(entry.id))
def test_users_of_datasets_declare_the_helper(entry: Failure) -> None:
    """A case whose module uses GPTDataset fails in another way where the compiled helper is missing."""
    for one in entry.case:
        own = one.run not in ("", PARITY)  # the others have no module
        uses = own and "gpt_dataset" in (entry.folder / f"{one.function[0]}.py").read_text(encoding="utf-8")
        assert CaseNeed.DATASET_HELPER in one.needs or one.levels == (Level.GPU,) or not uses, one.name


TORCH_24 = ("2.4.0",)


def test_cells_combine_the_axes_of_a_failure() -> None:
    """The others are absent."""
    known = catalog(failure(axes=(BASE, MCORE)), torches=("2.3.1", "2.4.0"), megatron_core=releases(["0.8.0"]))
    made = cells_of(known, known.failures[0])
    assert [(one.base, one.stack[TORCH], one.stack[MCORE], one.stack[TE]) for one in made] == [
        ("torch-2.3.1", "2.3.1", "0.8.0", ABSENT),
        ("torch-2.4.0", "2.4.0", "0.8.0", ABSENT),
    ]
    assert [one.base for one in cells_of(known, known.failures[0], ["torch-2.4.0"])] == ["torch-2.4.0"]
    assert cells_of(known, known.failures[0], []) == []


def test_failure_without_the_axis_base_is_read_alone() -> None:
    known = catalog(failure(axes=(MCORE,)), readers=(reader(),), megatron_core=releases(["0.8.0"]))
    assert [one.base for one in cells_of(known, known.failures[0])] == ["no-torch"]


def test_call_runs_with_torch_and_reads_without() -> None:
    """An entry with a call and a case that runs has cells on both kinds of bases, each with its levels."""
    cases = (case("read", levels=[Level.CONTRACT]), case("build", levels=[Level.GPU]))
    entry = failure(axes=(BASE, MCORE), contract=ContractCall(".call$"), case=cases)  # type: ignore[arg-type]
    known = catalog(entry, readers=(reader(),), wheels=(wheels("2.4.0"),), megatron_core=releases(["0.8.0"]))
    runs = {
        (cell.base, part.name)
        for cell in cells_of(known, entry)
        for part, _ in run_in(known, entry, cell, tuple(Level))
    }
    assert runs == {("no-torch", "read"), ("torch-2.4.0", "read"), ("torch-2.4.0", "build")}


def test_bounds_are_asked_with_what_is_decided() -> None:
    """First of the base, then of each release; what is refused is never combined."""
    known = catalog(failure(axes=(BASE, MCORE, TE)), torches=TORCH_24, megatron_core=releases(["0.7.0", "0.8.0"]))
    questions: list[dict[str, Value]] = []

    def may(values: Mapping[str, Value]) -> bool:
        questions.append(dict(values))
        return values.get(MCORE) != "0.7.0"

    made = cells_of(known, known.failures[0], may=may)
    assert {one.stack[MCORE] for one in made} == {"0.8.0"}
    fixed = {"failure": "break", "base": "torch-2.4.0", TORCH: "2.4.0", DRIVER: ABSENT, SM: ABSENT, GPUS: ABSENT}
    assert questions[0] == fixed
    assert {**fixed, MCORE: "0.7.0"} in questions
    assert not any(values.get(MCORE) == "0.7.0" and TE in values for values in questions)
    assert cells_of(known, known.failures[0], may=lambda values: values["base"] != "torch-2.4.0") == []


def test_packages_of_cells_are_combined_by_name() -> None:
    packages = [("a", "1"), ("a", "2"), ("b", "3")]
    entry = failure(package=tuple(OpenPackage(name, version) for name, version in packages))  # type: ignore[arg-type]
    assert package_sets(entry) == [{"a": "1", "b": "3"}, {"a": "2", "b": "3"}]
    assert package_sets(failure()) == [{}]


CORE_RELEASES = (
    Release("0.8.0", tag="core_v0.8.0"),  # type: ignore[arg-type]  # not from TOML
    Release("0.8.1", on_pypi=False, tag="core_v0.8.1"),  # type: ignore[arg-type]
    Release("0.9.0"),  # type: ignore[arg-type]
)
BUILD = Build(MCORE, "0.9.0rc0+0a1b2c3", "megatron-lm@0a1b2c3", "")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("axes", "clones", "component", "on_image", "versions"),
    [
        ((MCORE,), "", MCORE, False, ["0.8.0", "0.9.0", "0.9.0rc0+0a1b2c3"]),
        ((MCORE,), "no wheel", MCORE, False, ["0.8.0", "0.9.0", "0.9.0rc0+0a1b2c3"]),
        ((MCORE,), "no wheel", MCORE, True, ["0.8.0", "0.8.1", "0.9.0rc0+0a1b2c3"]),
        ((MCORE,), "", MCORE, True, ["0.8.0", "0.9.0", "0.9.0rc0+0a1b2c3"]),
        ((MCORE,), "", TE, False, [ABSENT]),
        ((WRITER_MCORE,), "", WRITER_MCORE, False, ["0.8.0", "0.9.0", "0.9.0rc0+0a1b2c3"]),
    ],
)
def test_versions_of_a_component_in_a_base(
    axes: tuple[str, ...], clones: str, component: str, on_image: bool, versions: list[Value]
) -> None:
    """Releases on PyPI and builds; in an image, where clones are used, the releases of the clone."""
    entry = failure(axes=axes, clones=clones, build=(BUILD,))
    known = catalog(entry, megatron_core=CORE_RELEASES)
    base: Any = Image("debian", "2.4.0", "3.11", ()) if on_image else known.wheels[0]  # type: ignore[arg-type]
    assert versions_of(known, entry, component, base) == versions


@pytest.mark.parametrize(
    ("version", "clones", "level", "source"),
    [
        ("0.9.0rc0+0a1b2c3", "", Level.CONTRACT, "megatron-lm@0a1b2c3"),
        ("0.8.0", "", Level.CPU, ""),
        ("0.8.0", "no wheel", Level.CPU, "megatron-lm@core_v0.8.0"),
        ("0.8.0", "no wheel", Level.CONTRACT, ""),
        ("0.9.0", "no wheel", Level.CPU, ""),  # no revision is recorded
        ("0.7.0", "no wheel", Level.CPU, ""),
    ],
)
def test_source_of_a_version_off_pypi(version: str, clones: str, level: Level, source: str) -> None:
    entry = failure(clones=clones, build=(BUILD,))
    known = catalog(entry, megatron_core=CORE_RELEASES)
    assert source_of(known, entry, MCORE, Stack({MCORE: version}), level) == source


@pytest.mark.parametrize(
    ("version", "level", "source"),
    [
        ("0.8.0", Level.GPU, ""),
        ("0.8.0", Level.CPU, "megatron-lm@core_v0.8.0"),
        ("0.9.0rc0+0a1b2c3", Level.GPU, "megatron-lm@0a1b2c3"),
    ],
)
def test_a_release_is_built_from_the_index(version: str, level: Level, source: str) -> None:
    """At level gpu, where an environment of wheels builds its compiled part."""
    entry = failure(clones="no wheel", build=(BUILD,))
    known = catalog(entry, megatron_core=CORE_RELEASES)
    assert source_of(known, entry, MCORE, Stack({MCORE: version}), level, built=True) == source


def test_clones_need_revisions_of_builds_and_tags() -> None:
    engine = Build(TE, "1.9.0+37280ec", "transformer-engine@37280ec", "")  # type: ignore[arg-type]
    builds, cloned = failure(build=(BUILD, engine)), failure("b", clones="no wheel")
    assert revisions(catalog(builds, megatron_core=CORE_RELEASES)) == {
        "megatron-lm": ("0a1b2c3",),
        "transformer-engine": ("37280ec",),
    }
    assert revisions(catalog(builds, cloned, megatron_core=CORE_RELEASES)) == {
        "megatron-lm": ("0a1b2c3", "core_v0.8.0", "core_v0.8.1"),
        "transformer-engine": ("37280ec",),
    }


def test_packages_are_laid_with_what_they_require() -> None:
    packages = (OpenPackage("a", "1", ("x==1", "y==2")), OpenPackage("b", "3"))  # type: ignore[arg-type]
    known = catalog(failure(package=packages), torches=TORCH_24)
    cell = known.cell("torch-2.4.0", {MCORE: "0.8.0", "a": "1", "b": "3"}, ("a", "b"))
    assert required_pins(known.failures[0], cell) == ("a==1", "x==1", "y==2", "b==3")
    assert required_pins(failure(), cell) == ("a==1", "b==3")


@pytest.mark.parametrize(
    ("level", "needs", "there"),
    [
        (Level.CONTRACT, (), False),
        (Level.CPU, (), True),
        (Level.GPU, (), True),
        (Level.GPU, (CaseNeed.COMPILED_TE,), False),
    ],
)
def test_stand_in_is_for_cases_that_run(level: Level, needs: tuple[CaseNeed, ...], there: bool) -> None:
    stand_in = StandIn(clause(mcore="<0.9"), "absent", ("apex", "te"))
    entry = failure(stand_in=(stand_in,), case=(replace(case(levels=tuple(Level)), needs=needs),))
    known = catalog(entry, torches=TORCH_24)
    cell = known.cell("torch-2.4.0", {MCORE: "0.8.0"})
    assert stand_in_of(entry, entry.case[0], level, cell) == (stand_in if there else None)
    absent = " where absent" if level is Level.GPU else ""
    notes = (f"stand-in{absent}: apex, te (absent)",) if there else ()
    assert plan_case(known, entry, entry.case[0], level, cell).notes == notes


def test_planned_case_has_all_that_it_needs() -> None:
    packages = (OpenPackage("a", "1", ("x==1",)),)  # type: ignore[arg-type]
    one = replace(case(levels=(Level.CPU,), ranks=3, gpus=2), launcher="mpirun", packages=("z==9",))
    entry = failure(case=(one,), package=packages, overrides=("numpy",), build=(BUILD,), affected=(clause(),))
    known = catalog(entry, torches=TORCH_24)
    cell = known.cell("torch-2.4.0", {MCORE: "0.9.0rc0+0a1b2c3", TE: "1.9", "a": "1"}, ("a",))
    assert plan_case(known, entry, one, Level.CPU, cell) == Planned(
        cell,
        "break",
        "tp2",
        Level.CPU,
        Expectation.BROKEN,
        ranks=3,
        gpus=2,
        launcher="mpirun",
        packages=("z==9", "a==1", "x==1"),
        overrides=("numpy",),
        source="megatron-lm@0a1b2c3",
        notes=(TE_STAND_IN,),
    )
    assert plan_case(known, entry, one, Level.CPU, cell, compiled=True).notes == ()
    assert plan_case(known, entry, one, Level.GPU, cell).notes == ()


def test_twins_of_a_base_are_noted_in_order() -> None:
    images = (image("ngc-24.07", "2.4.0a0+3bcc3cddb5"), image("ngc-24.08", "2.4.0a0+3bcc3cddb5"))
    known = catalog(failure(), torches=TORCH_24, containers=images)
    assert planned(known).notes == ("twin of ngc-24.07, ngc-24.08",)


@pytest.mark.parametrize(
    ("changes", "core", "name", "reason"),
    [
        ({}, "0.8.0", "tp2", "first: it fails before"),
        ({}, "0.8.0", "", "first: it fails before"),
        ({}, "0.9.0", "tp2", None),  # the first one is not broken there
        ({"cases": ("pp2",)}, "0.8.0", "pp2", "first: it fails before"),
        ({"cases": ("pp2",)}, "0.8.0", "tp2", None),
        ({"cases": ("pp2",)}, "0.8.0", "", None),  # not every one is masked
        ({"when": clause(torch=">=2.5")}, "0.8.0", "tp2", None),
    ],
)
def test_failure_that_comes_first_masks_cases(
    changes: dict[str, Any], core: str, name: str, reason: str | None
) -> None:
    first = failure("first", affected=(clause(mcore="<0.9"),))
    never = masked("first", torch="<1")
    entry = failure(masked=(never, replace(masked("first"), **changes)), affected=(clause(),))
    known = catalog(entry, first, torches=TORCH_24)
    stack = known.cell("torch-2.4.0", {MCORE: core}).stack
    assert masked_by(known, entry, stack, name) == reason
    if name:
        side = Expectation.UNKNOWN if reason else Expectation.BROKEN
        one = replace(case(), name=Identifier(name))
        assert expected(known, entry, stack, one) is side
        cell = known.cell("torch-2.4.0", {MCORE: core})
        assert plan_case(known, entry, one, Level.CPU, cell).expectation is side


def test_case_of_other_releases_is_unknown() -> None:
    entry = failure(affected=(clause(),))
    newer = replace(case(), releases={MCORE: Range(">=0.9")})
    known = catalog(entry, torches=TORCH_24)
    sides = [
        expected(known, entry, known.cell("torch-2.4.0", {MCORE: core}).stack, newer) for core in ("0.8.0", "0.9.0")
    ]
    assert sides == [Expectation.UNKNOWN, Expectation.BROKEN]


def test_case_moves_with_its_bases_packages() -> None:
    """What is laid over it stays; so does a case on a base without wheels, or with an unknown Python."""
    pinned = wheels("2.4.0", pythons=("3.10", "3.12"), requires=("numpy==1.26.4; python_version < '3.12'",))
    known = catalog(ENTRY, wheels=(pinned,), readers=(reader(),))
    item = planned(known)
    moved = on_python(known, replace(item, cell=item.cell.with_({"zarr": "3"})), "3.12")
    assert (moved.cell.stack[PYTHON], moved.cell.stack["zarr"]) == ("3.12", "3")
    assert (item.cell.stack["numpy"], moved.cell.stack["numpy"]) == ("1.26.4", UNKNOWN)
    reads = planned(catalog(ENTRY, readers=(reader(),)), base="no-torch")
    assert on_python(known, reads, "3.10") is reads
