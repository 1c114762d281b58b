"""The draft of a catalog failure: what a bisection of a command measured, as ranges and as the cells of a night."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from matrix.ground.catalog.codec import decode
from matrix.ground.catalog.model import Catalog, Wheels
from matrix.ground.catalog.stack import BASE, NAMED, PYTHON, TORCH, WRITER, Cell, Clause, component_named, short
from matrix.ground.verdicts.record import Record
from matrix.ground.verdicts.text import MASKED, one_line
from matrix.prove.bisection.axes import axis_word
from matrix.prove.bisection.joint import BisectionAnswer
from matrix.prove.bisection.noise import ProbeResult
from matrix.prove.bisection.own import TODO, OwnCommand
from matrix.prove.bisection.probe_session import Bisection, why
from matrix.prove.bisection.search import ResultKind

Measured = tuple[Record, ProbeResult]


def draft(own: OwnCommand, answer: BisectionAnswer, headlines: Sequence[str]) -> dict[str, Any]:
    """Return the entry of a catalog failure, with what the search measured."""
    cause = f"{TODO}. Bisected: {'; '.join(headlines)}"
    if own.shared != own.command:
        cause += f". {TODO}: pass what is {MASKED} in variables"
    cells = measured_cells(answer)
    rules = measured_rules(answer.subject.catalog, cells, ranges(answer))
    entry = replace(own, command=own.shared).entry(answer.subject.failure.signature, cause=cause, fix=TODO, **rules)
    used = {name for record, _ in cells for name in NAMED if record.cell.stack.version(name)}
    return entry | {"id": own.id, "axes": [BASE, *(short(name) for name in NAMED if name in used)]}


def measured_cells(answer: BisectionAnswer) -> list[Measured]:
    """Return a record and the result of each released cell that a search probed; commits have no rule in a catalog.

    Of two stacks, the mixtures with packages of their own are left out: a cell of a failure names each package. So are
    cells with a package that no rule can name.
    """
    compared, cells = answer.comparison, list[Measured]()
    for bisection in answer.bisections.values():
        if not bisection.axis.clone:
            tallies = bisection.result.tallies.items()
            cells += [(bisection.records[index][-1], tally.settled or ProbeResult.SKIP) for index, tally in tallies]
    cells = [(record, result) for record, result in cells if can_be_named(record.cell)]
    packages = {record.cell.packages for record, _ in cells}
    for mixture, result in compared.attribution.probed.items() if compared else ():
        record = compared.records.get(mixture) if compared else None
        if record and (record.cell.packages in packages or not (packages or record.cell.packages)):
            cells.append((record, result))
    return [(record, result) for record, result in cells if result is not ProbeResult.SKIP]


def measured_rules(
    catalog: Catalog, cells: Sequence[Measured], along: Mapping[str, Sequence[Mapping[str, Any]]]
) -> dict[str, Any]:
    """Return the rules of measured cells, and the picks that run them again; `along` are rules that cover several."""
    rules: dict[str, list[dict[str, Any]]] = {name: [dict(rule) for rule in along.get(name, ())] for name in TABLES}
    picks: list[dict[str, Any]] = []
    for record, result in cells:
        cell, table = record.cell, rules[TABLES[result is ProbeResult.GOOD]]
        if not any(decode(Clause, rule).matches(cell.stack) for rule in table):
            table.append({**bounds_of(catalog, cell), "reason": f"measured: {one_line(why(record), 100)}"})
        pick = {"base": cell.base, **versions_of(cell), "cases": ["command"], "reason": "the bisection probed it"}
        if pick not in picks:
            picks.append(pick)
    packages = sorted({(name, str(record.cell.stack[name])) for record, _ in cells for name in record.cell.packages})
    tables = [{"name": name, "version": version} for name, version in packages]
    return {**rules, "pick": picks, **({"package": tables} if tables else {})}


TABLES = ("affected", "works")


def ranges(answer: BisectionAnswer) -> dict[str, list[dict[str, Any]]]:
    """Return the two rules of each change: from it to the bad end, and from the good end up to it."""
    rules: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES}
    for component, bisection in answer.bisections.items():
        if bisection.axis.clone or not bisection.sides or component == BASE:
            continue
        cells = {place: records[-1].cell for place, records in bisection.records.items()}
        if not can_be_named(cells[0]):
            continue
        last = cells[len(bisection.axis.points) - 1].stack[component]
        change, first = (cells[place].stack[component] for place in (bisection.result.candidates[0], 0))
        fixed = bounds_of(answer.subject.catalog, cells[0], without=component)
        sides = [f">={change},<={last}", f">={first},<{change}"]
        if bisection.result.kind is ResultKind.FIRST_FIXED:
            sides.reverse()
        for name, bound in zip(TABLES, sides, strict=True):
            rules[name].append({**fixed, short(component): bound, "reason": reason_of(bisection)})
    return rules


def can_be_named(cell: Cell) -> bool:
    """Return whether an entry can name each package of a cell: those of components.toml."""
    return all(map(component_named, cell.packages))


def reason_of(bisection: Bisection) -> str:
    """Return how many points of an axis a search measured."""
    word, count = axis_word(bisection.axis.component), len(bisection.axis.points)
    return f"bisected: {len(bisection.result.tallies)} of {count} points of {word} measured"


def bounds_of(catalog: Catalog, cell: Cell, without: str = "") -> dict[str, Any]:
    """Return the conditions that a cell alone meets, except on the component `without`."""
    base, bounds = catalog.find_base(cell.base), dict[str, Any]()
    if not isinstance(base, Wheels):
        bounds["base"] = [cell.base]
    elif without != TORCH:
        bounds[TORCH] = f"=={base.torch}"
    if base and base.id in catalog.by_python and without != PYTHON:
        bounds[PYTHON] = f"=={cell.stack[PYTHON]}"
    return bounds | {name: f"=={version}" for name, version in versions_of(cell, without).items()}


def versions_of(cell: Cell, without: str = "") -> dict[str, str]:
    """Return the versions that a cell lays over its base, by short name."""
    names: Iterable[str] = (*NAMED, *WRITER, *cell.packages)
    versions = {name: cell.stack.version(name) for name in names if name != without}
    return {short(name): version for name, version in versions.items() if version}
