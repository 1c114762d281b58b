"""Small catalogs built in the tests, whose expected results are easy to see; and copies of the real catalog."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matrix.ground.cases.cells import plan_case
from matrix.ground.catalog.failure import Case, CellName, Failure, Level, Masked, ReportedStack, Rule, Signature
from matrix.ground.catalog.kinds import FailureKind
from matrix.ground.catalog.loading import FACTS, load
from matrix.ground.catalog.model import Catalog, Container, Driver, Exclusion, ReaderBase, Release, Wheels
from matrix.ground.catalog.stack import ABSENT, BASE, DECIDED, MCORE, Cell, Stack, Value, component_named
from matrix.ground.catalog.versions import Range
from matrix.ground.verdicts.outcome import Outcome, OutcomeKind, Raised
from matrix.ground.verdicts.planned import Planned
from matrix.prove.planning.night import night, pairwise
from matrix.prove.planning.rerun import PlanEntry, reproduce_line

if TYPE_CHECKING:
    from matrix.ask.check.table import StackTable

TORCHES = ("2.3.1", "2.4.0", "2.5.1")
CORES = ("0.7.0", "0.8.0", "0.9.0")
ENGINES = ("1.8", "1.9", "1.10")


@cache
def real() -> Catalog:
    """Return the catalog of this tree, read once."""
    return load()


@cache
def real_night(levels: tuple[Level, ...]) -> tuple[Planned, ...]:
    """Return the night of the catalog of this tree, planned once for each choice of levels."""
    return tuple(night(real(), pairwise, levels))


@cache
def real_table() -> StackTable:
    """Return the tables of the catalog of this tree, built once: five seconds of processor."""
    from matrix.ask.check.table import build_table

    return build_table(real())


def few(*ids: str) -> Catalog:
    """Return the catalog of this tree with these entries alone, masked by each other alone.

    Counts and texts of it stay when other entries are added.
    """
    entries = [real().failure(id) for id in ids]
    return replace(
        real(),
        failures=tuple(replace(entry, masked=tuple(one for one in entry.masked if one.by in ids)) for entry in entries),
    )


def copy_of_facts(folder: Path) -> Path:
    """Copy the catalog's tables into `folder`, for a test to edit; return the copy."""
    return Path(shutil.copytree(FACTS, folder / "facts", ignore=shutil.ignore_patterns("surfaces")))


def clause(
    *,
    base: Sequence[str] = (),
    cases: Sequence[str] = (),
    packages: dict[str, str] = {},  # noqa: B006  (it is not changed)
    reason: str = "by hand",
    **bounds: str,
) -> Rule:
    """Return a rule with bounds as texts: clause(mcore=">=0.8", torch="<2.4")."""
    ranges = {component_named(name) or name: Range(text) for name, text in (bounds | packages).items()}
    return Rule(tuple(base), ranges, reason, tuple(cases))  # type: ignore[arg-type]  # not from TOML


def values(**versions: str) -> dict[str, Value]:
    """Return the values of components by their short names; "none" is ABSENT: values(mcore="0.8.0", te="none")."""
    return {component_named(name): ABSENT if text == "none" else text for name, text in versions.items()}


def case(name: str = "tp2", levels: Iterable[Level] = (Level.CPU,), ranks: int = 2, gpus: int = 1) -> Case:
    return Case(name, tuple(levels), f"run_{name}".replace("-", "_"), ranks=ranks, gpus=gpus)  # type: ignore[arg-type]


def failure(id: str = "break", **further: Any) -> Failure:
    """Return an entry with the signature `TypeError: ID broke` and, by default, no rule."""
    given: dict[str, Any] = {
        "id": id,
        "title": f"{id} shows",
        "references": (),
        "axes": (BASE, MCORE),
        "symptom": "",
        "cause": "",
        "fix": "",
        "signature": (Signature("broke", exception="TypeError", message=f"{id} broke"),),  # type: ignore[arg-type]
        "affected": (),
        "case": (case(),),
        "folder": Path(__file__).parent / "entry",
        **further,
    }
    return Failure(**given)


def masked(by: str, **when: str) -> Masked:
    return Masked(by, "it fails before", when=clause(**when))  # type: ignore[arg-type]


def shown(entry: Failure) -> Outcome:
    """Return an outcome that shows the signature of a failure made by `failure`."""
    return Outcome(
        OutcomeKind.RAISED, f"rank 0 raised: {entry.id}", 0, chain=(Raised("TypeError", f"{entry.id} broke"),)
    )


def wheels(torch: str, *, night: str = "by hand", pythons: Sequence[str] = ("3.10",), **more: Any) -> Wheels:
    return Wheels(f"torch-{torch}", torch, tuple(pythons), night, **more)  # type: ignore[arg-type]


def reader(*, night: str = "by hand") -> ReaderBase:
    return ReaderBase("no-torch", ("3.12",), night)  # type: ignore[arg-type]  # not from TOML


def releases(versions: Iterable[str]) -> tuple[Release, ...]:
    return tuple(Release(version) for version in versions)  # type: ignore[arg-type]


def cell(base: str = "torch-2.4.0", **versions: str) -> Cell:
    """Return a cell by the short names of components: cell("torch-2.4.0", torch="2.4.0", mcore="0.8.0")."""
    return Cell(base, Stack({**dict.fromkeys(DECIDED, ABSENT), BASE: base, **values(**versions)}))


def stack(failure: str, base: str, core: str, *, gpus: int = 2, **cell: str) -> tuple[str, ReportedStack]:
    """Return the id of a failure and the stack of a report in its entry."""
    named = CellName(base, values(mcore=core, **cell))  # type: ignore[arg-type]  # not from TOML
    return failure, ReportedStack("Some#1", "as reported", named, gpus)


def captured_by(kind: FailureKind) -> set[str]:
    """Return the names of the groups of its patterns."""
    patterns = (pattern for sign in kind.sign for pattern in (sign.message, sign.source, sign.log) if pattern)
    return {name for pattern in patterns for name in re.compile(pattern).groupindex}


def exclusion(reason: str = "by hand", **bounds: Any) -> Exclusion:
    return Exclusion(clause(**bounds), reason)


def catalog(
    *failures: Failure,
    torches: Sequence[str] = TORCHES,
    stacks: Iterable[tuple[str, ReportedStack]] = (),
    **further: Any,
) -> Catalog:
    """Return a catalog of bases torch-2.3.1, torch-2.4.0, torch-2.5.1, all for the night, with CORES and ENGINES."""
    given: dict[str, Any] = {field.name: () for field in fields(Catalog)}
    given |= {
        "wheels": tuple(map(wheels, torches)),
        "megatron_core": releases(CORES),
        "transformer_engine": releases(ENGINES),
        "drivers": (Driver("535"),),  # type: ignore[arg-type]
        "failures": tuple(
            replace(entry, stack=tuple(one for id, one in stacks if id == entry.id) or entry.stack)
            for entry in failures
        ),
        **further,
    }
    return Catalog(**given)


def image(id: str, torch: str | None, te: str | None = None) -> Container:
    return Container(id, f"registry/{id}", torch=torch, te=te, te_source="inferred")  # type: ignore[arg-type]


def planned(known: Catalog, base: str = "torch-2.4.0", core: str = "0.8.0", **changes: Any) -> Planned:
    """Return the first case of the catalog's first failure, on the base with megatron-core `core`."""
    entry = known.failures[0]
    cell = known.cell(base, values(mcore=core))
    return replace(plan_case(known, entry, entry.case[0], entry.case[0].levels[0], cell), **changes)


def plan_entry(item: Planned) -> dict[str, Any]:
    """Return a case as JSON of a run's plan, with its command line in this environment."""
    return PlanEntry(item, reproduce_line(item, os.environ)).to_plain()
