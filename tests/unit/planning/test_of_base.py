"""Plans other than the night: every cell, the cases of the current base, and a source under test."""

from __future__ import annotations

from dataclasses import replace

import pytest

from matrix.catalog.failure import Build, Expectation, Level, StandIn
from matrix.catalog.model import Release
from matrix.catalog.stack import MCORE, TE, TORCH
from matrix.planning.night import everything, of_base, of_source
from matrix.verdicts.planned import Planned
from matrix.verdicts.reason import Reason, ReasonKind
from tests.unit.catalogs import (
    CORES,
    TORCHES,
    catalog,
    clause,
    exclusion,
    failure,
    image,
    masked,
    releases,
    wheels,
)
from tests.unit.planning.test_night import BROKEN, ENGINE_TOO, short


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
    ],
)
def test_of_base_uses_the_installed_engine(engine: str | None, line: str, expected: list[str]) -> None:
    known = catalog(failure(axes=ENGINE_TOO), megatron_core=releases(["0.8.0"]))
    items = of_base(known, "torch-2.4.0", (Level.CPU,), engine=engine, te_line=line)
    assert expected == [item.cell.stack[TE] for item in items]


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
