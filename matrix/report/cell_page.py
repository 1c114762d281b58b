"""The page of one cell: the reason for each verdict, a command to reproduce it, its packages, its history."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from matrix.catalog.failure import Expectation
from matrix.catalog.model import Catalog
from matrix.planning.explain import reported_cells
from matrix.report import rulings
from matrix.report.document import document
from matrix.report.rulings import Ruling
from matrix.report.strip import Strip, Trend, strip, trend
from matrix.report.words import WORST_FIRST, beside_mcore
from matrix.store.trend import Flakes, PastResult, Pasts, flakes, turns
from matrix.verdicts.record import Record
from matrix.verdicts.text import one_line

SHOWN: Final = 10  # colour changes listed for a case


@dataclass(frozen=True)
class LogLink:
    """A log file: its name on the page, and the link to it, "" if the file is missing on this machine."""

    name: str
    link: str


@dataclass(frozen=True)
class CaseHistory:
    """The nights of a case, the first and last in which it ran ("" for none), and its latest changes of colour."""

    nights: int
    strip: Strip
    first: str
    last: str
    turns: Sequence[tuple[PastResult, PastResult, bool]]
    flakes: Flakes
    trend: Trend | None


@dataclass(frozen=True)
class CellRule:
    """A ruling on a failure in the cell, and the cases for which it differs from the ruling on the whole failure."""

    failure: str
    ruling: Ruling
    cases: tuple[str, ...]


def cell_page(
    run: str, records: Sequence[Record], catalog: Catalog, pasts: Pasts, log_of: Callable[[str], LogLink]
) -> str:
    """Return the page.

    `records`: all records of one cell; `pasts`: the results of each case in earlier nights; `log_of` takes the path
    of a rank's log.
    """
    ordered = sorted(records, key=lambda record: WORST_FIRST.index(record.verdict))
    rules = _rules(records, catalog)
    return document(
        "cell.html.j2",
        run=run,
        cell=records[0].cell,
        named=_facts(records),
        cases=[(record, _history(pasts.get(record.key, ()))) for record in ordered],
        log_of=log_of,
        rules=rules,
        unruled=sorted({failure.id for failure in catalog.failures} - {rule.failure for rule in rules}),
    )


def _facts(records: Sequence[Record]) -> dict[str, str]:
    cell = records[0].cell
    resolved = {name: version for record in records for name, version in record.resolved.items()}
    facts = {
        "base": f"{cell.base}, torch {cell.torch}",
        "Megatron": cell.mcore,
        "Transformer Engine": cell.te,
        **{axis: version for axis, version in beside_mcore(cell).items() if axis != "te"},
        "compute capability": cell.sm,
        "GPUs": cell.gpus,
        "image": resolved.pop("image", ""),
        "host": resolved.pop("host", ""),
        "host driver": resolved.pop("host driver", ""),
        "user-mode driver": resolved.pop("user-mode driver", ""),
        "Python": resolved.pop("python", ""),
        "resolved": ", ".join(f"{name} {version}" for name, version in sorted(resolved.items())),
        "notes": "; ".join(dict.fromkeys(one_line(note) for record in records for note in record.notes)),
    }
    return {name: fact for name, fact in facts.items() if fact != "none"}


def _history(pasts: Sequence[PastResult]) -> CaseHistory | None:
    """Return the history of a case, None for fewer than two nights."""
    if len(pasts) < 2:
        return None
    ran = [past.run for past in pasts if past.ran] or [""]
    return CaseHistory(len(pasts), strip(pasts), ran[0], ran[-1], turns(pasts)[-SHOWN:], flakes(pasts), trend(pasts))


def _rules(records: Sequence[Record], catalog: Catalog) -> list[CellRule]:
    """Return the ruling on each failure as a whole, as `megatrix explain` prints it, and on its cases that differ."""
    cell = reported_cells(catalog).get(records[0].cell.id, records[0].cell)
    rules = []
    for failure in catalog.failures:
        whole = rulings.of_cell(catalog, failure, cell)
        cases: dict[Ruling, list[str]] = {} if whole.expectation is Expectation.UNKNOWN else {whole: []}
        for record in records:
            if record.failure == failure.id:
                cases.setdefault(rulings.of_record(catalog, failure, record), []).append(record.case)
        rules += [
            CellRule(failure.id, ruling, () if ruling == whole else tuple(dict.fromkeys(names)))
            for ruling, names in cases.items()
        ]
    return rules


def by_cell(records: Iterable[Record]) -> Mapping[str, list[Record]]:
    """Return the records of each cell by the cell's id; cells and records keep their order."""
    cells: dict[str, list[Record]] = {}
    for record in records:
        cells.setdefault(record.cell.id, []).append(record)
    return cells
