"""Plans other than the night: every cell, the cases of the current base, and a source under test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from matrix.ground.cases.cells import plan_case
from matrix.ground.catalog.failure import Build, Expectation, Level, StandIn
from matrix.ground.catalog.model import Release
from matrix.ground.catalog.schema import Identifier
from matrix.ground.catalog.stack import ABSENT, MCORE, TE, TORCH
from matrix.ground.catalog.versions import Range
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.planned import Planned, Reason, ReasonKind
from matrix.prove.planning.night import ANY_LINE, everything, of_base, of_key, of_source
from tests.unit.catalogs import (
    CORES,
    TORCHES,
    case,
    catalog,
    clause,
    exclusion,
    failure,
    image,
    masked,
    releases,
    wheels,
)
from tests.unit.prove.planning.test_night import BROKEN, ENGINE_TOO, short


def test_everything_has_masked_but_not_excluded_cells() -> None:
    known = catalog(replace(BROKEN, masked=(masked("break"),)), exclusions=(exclusion("can't be", torch=">=2.5"),))
    items = everything(known, (Level.CPU,))
    every = [f"{torch} {core} {name}" for torch in TORCHES[:2] for core in CORES for name in ("tp2", "pp2")]
    assert every == [short(item) for item in items]


def test_builds_have_cells_releases_off_pypi_do_not() -> None:
    engine = Build(TE, "1.8.0+37280ec", "transformer-engine@37280ec", "NGC 24.07")  # type: ignore[arg-type]
    entry = failure(axes=ENGINE_TOO, build=(engine,))
    known = catalog(
        entry,
        torches=("2.4.0",),
        megatron_core=(Release("0.8.0"), Release("0.8.1", on_pypi=False)),  # type: ignore[arg-type]
        transformer_engine=(Release("1.8", on_pypi=False), Release("1.9")),  # type: ignore[arg-type]
    )
    items = {item.cell.stack[TE]: item.te_source for item in everything(known, (Level.CPU,))}
    assert items == {"1.9": "", "1.8.0+37280ec": "transformer-engine@37280ec"}
    assert {item.cell.stack[MCORE] for item in everything(known, (Level.CPU,))} == {"0.8.0"}


def test_a_case_notes_its_twin_and_stand_ins() -> None:
    stand_in = StandIn(clause(mcore="<0.8"), "they are imported unasked", ("apex",))
    known = catalog(failure(stand_in=(stand_in,)), containers=(image("ngc-24.07", "2.4.0a0+3bcc3cddb5"),))
    notes = {short(item): item.notes for item in everything(known, (Level.CPU,))}
    assert notes["2.4.0 0.7.0 tp2"] == ("twin of ngc-24.07", "stand-in: apex (they are imported unasked)")
    assert notes["2.3.1 0.8.0 tp2"] == ()


def cores(items: list[Planned]) -> list[str]:
    return [str(item.cell.stack[MCORE]) for item in items]


def test_of_base_has_each_minor_s_newest_patch() -> None:
    known = catalog(failure(), megatron_core=releases(["0.8.0", "0.8.1", "0.9.0"]))
    assert cores(of_base(known, "torch-2.4.0", (Level.CPU,))) == ["0.8.1", "0.9.0"]


@pytest.mark.parametrize("core", ["0.8.0", "0.8.0.dev0+ngc"])
def test_of_base_uses_the_installed_megatron_core(core: str) -> None:
    assert [core] == cores(of_base(catalog(failure()), "torch-2.4.0", (Level.CPU,), core=core))


def test_of_base_has_no_masked_case() -> None:
    mask = failure("mask", affected=(clause(mcore="<0.9"),))
    for when, left in (({}, ["0.9.0"]), ({"mcore": ">=0.8"}, ["0.7.0", "0.9.0"]), ({"torch": ">=2.4"}, ["0.9.0"])):
        known = catalog(failure(masked=(masked("mask", **when),)), mask)
        assert [
            i.cell.stack[MCORE] for i in of_base(known, "torch-2.4.0", (Level.CPU,)) if i.failure == "break"
        ] == left


def test_te_line_adds_the_cells_of_its_engines() -> None:
    known = catalog(failure(axes=ENGINE_TOO), megatron_core=releases(["0.8.0"]))
    lines = [
        [i.cell.stack[TE] for i in of_base(known, "torch-2.4.0", (Level.CPU,), te_line=line)] for line in ("", "1.9")
    ]
    assert lines == [[], ["1.9"]]


@pytest.mark.parametrize(
    ("engine", "line", "expected"),
    [
        ("1.9", "", ["1.9"]),
        ("1.9+ngc", "", ["1.9+ngc"]),  # in no list of releases
        ("1.9+ngc", "1.9", ["1.9+ngc"]),
        ("1.8", "1.9", ["1.9"]),  # te_line takes precedence over the installed engine
        (None, "", []),
        (None, ANY_LINE, ["1.8", "1.9", "1.10"]),  # of a machine that is not this one
    ],
)
def test_of_base_uses_the_installed_engine(engine: str | None, line: str, expected: list[str]) -> None:
    known = catalog(failure(axes=ENGINE_TOO), megatron_core=releases(["0.8.0"]))
    items = of_base(known, "torch-2.4.0", (Level.CPU,), engine=engine, te_line=line)
    assert expected == [item.cell.stack[TE] for item in items]


@pytest.mark.parametrize(
    ("engine", "compiled", "expected"), [(None, ("1.9",), ["1.9"]), ("1.8+ngc", ("1.9", "1.7"), ["1.8+ngc", "1.9"])]
)
def test_compiled_releases_of_a_bundle_are_added(
    engine: str | None, compiled: tuple[str, ...], expected: list[str]
) -> None:
    known = catalog(failure(axes=ENGINE_TOO), megatron_core=releases(["0.8.0"]))
    items = of_base(known, "torch-2.4.0", (Level.CPU,), engine=engine, compiled=compiled)
    assert [item.cell.stack[TE] for item in items] == expected


def test_line_of_the_installed_engine_is_the_default() -> None:
    known = catalog(failure(axes=ENGINE_TOO), megatron_core=releases(["0.8.0"]))
    items = of_base(known, "torch-2.4.0", (Level.CPU,), engine="1.9+ngc")
    assert [item.cell.stack[TE] for item in items] == ["1.9+ngc"]


def test_source_runs_in_every_night_base() -> None:
    known = catalog(
        BROKEN, failure("te", axes=ENGINE_TOO), wheels=(wheels("2.3.1"), wheels("2.4.0"), wheels("2.5.1", night=""))
    )
    items = of_source(known, "./Megatron-LM@fix", "0.8.0+0a1b2c3", Expectation.WORKS, (Level.CPU,))
    assert [f"{torch} 0.8.0+0a1b2c3 {name}" for torch in ("2.3.1", "2.4.0") for name in ("tp2", "pp2")] == [
        short(item) for item in items
    ]
    assert {("./Megatron-LM@fix", Expectation.WORKS, (Reason(ReasonKind.SOURCE, "./Megatron-LM@fix"),))} == {
        (item.source, item.expectation, item.why) for item in items
    }


def test_default_expectation_of_source_is_the_catalogs() -> None:
    items = of_source(catalog(BROKEN), "0.8.0", "0.8.0", None, (Level.CPU,))
    assert {item.cell.stack[TORCH]: item.expectation.value for item in items} == {
        "2.3.1": "works",
        "2.4.0": "broken",
        "2.5.1": "broken",
    }


def test_unwanted_cases_make_no_cells() -> None:
    """`may` gets failure, case and level of a case, and of a cell what is decided so far."""
    entries = [failure(name, case=(case("tp2", tuple(Level)), case("pp2", tuple(Level)))) for name in ("a", "b", "c")]
    known = catalog(*entries, torches=("2.4.0",), megatron_core=releases(["0.8.0"]))
    wanted = {"failure": ("a", "b"), "case": ("pp2",), "level": ("cpu", "gpu")}

    def may(values: Mapping[str, object]) -> bool:
        return all(values.get(name, allowed[0]) in allowed for name, allowed in wanted.items())

    planned = everything(known, (Level.CONTRACT, Level.CPU), may)
    assert [(item.failure, item.case, item.level) for item in planned] == [
        ("a", "pp2", Level.CPU),
        ("b", "pp2", Level.CPU),
    ]


def test_base_runs_its_cases_at_the_given_levels() -> None:
    entry = failure(case=(case("tp2", tuple(Level)), case("pp2", (Level.GPU,))))
    known = catalog(entry, megatron_core=releases(["0.8.0"]))
    planned = of_base(known, "torch-2.4.0", (Level.CONTRACT, Level.CPU))
    assert [(item.case, item.level) for item in planned] == [("tp2", Level.CONTRACT), ("tp2", Level.CPU)]
    source = of_source(known, "./tree", "0.8.0", None, (Level.GPU,))
    assert [(item.case, item.level) for item in source if item.cell.base == "torch-2.4.0"] == [
        ("tp2", Level.GPU),
        ("pp2", Level.GPU),
    ]


def test_base_leaves_out_masked_controls_alone() -> None:
    mask = failure("mask", affected=(clause(),), case=())
    control = replace(masked("mask"), cases=(Identifier("pp2"),))
    entry = failure(case=(case("tp2"), case("pp2")), masked=(control,))
    planned = of_base(catalog(entry, mask, megatron_core=releases(["0.8.0"])), "torch-2.4.0", (Level.CPU,))
    assert [item.case for item in planned] == ["tp2"]


def test_source_runs_the_cases_of_its_release() -> None:
    newer = replace(case("slices"), releases={MCORE: Range(">=0.9")})
    known = catalog(failure(case=(case("sample"), newer)), torches=("2.4.0",))
    for version, names in (("0.8.0", ["sample"]), ("0.9.0", ["sample", "slices"])):
        assert [item.case for item in of_source(known, "./tree", version, None, (Level.CPU,))] == names


def test_installed_engine_leaves_cells_without_one() -> None:
    """Those of failures that do not depend on Transformer Engine."""
    known = catalog(failure(), megatron_core=releases(["0.8.0"]))
    for engine, line in ((None, ""), ("1.9", ""), ("1.9", "1.8")):
        (item,) = of_base(known, "torch-2.4.0", (Level.CPU,), engine=engine, te_line=line)
        assert item.cell.stack[TE] is ABSENT


KEYED = catalog(
    failure(
        axes=ENGINE_TOO,
        affected=(clause(mcore="<0.9"),),
        case=(case("tp2", (Level.CONTRACT, Level.CPU)), case("pp2", (Level.GPU,))),
    )
)
CELL = "torch-2.4.0/mcore-0.8.0/te-1.9/driver-none"


@pytest.mark.parametrize(("name", "level"), [("tp2", Level.CONTRACT), ("tp2", Level.CPU), ("pp2", Level.GPU)])
def test_key_of_a_case_is_read_back(name: str, level: Level) -> None:
    """Its fields are those of the catalog; without sources it has no reason."""
    item = of_key(KEYED, f"{CELL} break {name} {level.value}", {}, None)
    entry = KEYED.failures[0]
    made = plan_case(
        KEYED, entry, entry.case_named(name), level, KEYED.cell("torch-2.4.0", {MCORE: "0.8.0", TE: "1.9"})
    )
    assert item == made
    assert (item.key, item.expectation, item.why) == (f"{CELL} break {name} {level.value}", Expectation.BROKEN, ())


def test_key_takes_sources_and_expectation() -> None:
    sources = {"source": "./Megatron-LM@fix", "te_source": "./TE", "writer_source": "./old"}
    item = of_key(KEYED, f"{CELL} break tp2 cpu", sources, Expectation.WORKS, compiled=True)
    assert {name: getattr(item, name) for name in sources} == sources
    assert (item.expectation, item.compiled, item.notes) == (Expectation.WORKS, True, ())
    assert item.why == tuple(Reason(ReasonKind.SOURCE, source) for source in sources.values())


@pytest.mark.parametrize(
    ("key", "what", "expected"),
    [
        (f"{CELL} break tp2", "not the key of a case", "CELL FAILURE CASE LEVEL"),
        (f"{CELL} break tp2 cpu more", "not the key of a case", "CELL FAILURE CASE LEVEL"),
        (f"{CELL} break  tp2 cpu", "not the key of a case", "CELL FAILURE CASE LEVEL"),
        (f"{CELL} break tp2 disk", "not the key of a case", "CELL FAILURE CASE LEVEL"),
        (f"{CELL} break tp4 cpu", "no such case", "a case of break at level cpu"),
        (f"{CELL} break tp2 gpu", "no such case", "a case of break at level gpu"),
        (f"{CELL} other tp2 cpu", "no such failure", "an id of the catalog"),
        ("torch-9 break tp2 cpu", "not a cell id", "BASE/mcore-VERSION/te-VERSION/driver-VERSION"),
    ],
)
def test_key_of_no_case_is_refused(key: str, what: str, expected: str) -> None:
    with pytest.raises(MatrixError) as caught:
        of_key(KEYED, key, {}, None)
    assert (caught.value.what, caught.value.expected) == (what, expected)
