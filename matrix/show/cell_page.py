"""The page of one cell: the reason for each verdict, a command to reproduce it, its packages, its history."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matrix.ground.catalog.failure import Expectation
from matrix.ground.catalog.model import Catalog
from matrix.ground.catalog.stack import GPUS, MCORE, SM, TE, TORCH
from matrix.ground.verdicts.record import Record
from matrix.ground.verdicts.text import one_line
from matrix.ground.verdicts.trend import PastResult, Pasts, flakes, steps, turns
from matrix.prove.planning.cell_explanation import reported_cells
from matrix.show import grounds
from matrix.show.document import document
from matrix.show.grounds import Grounds
from matrix.show.words import WORST_FIRST, beside_mcore


def cell_page(
    run: str, records: Sequence[Record], catalog: Catalog, pasts: Pasts, log_of: Callable[[str], tuple[str, str]]
) -> str:
    """Return the page.

    `records`: all records of one cell; `pasts`: the results of each case in earlier nights; `log_of` takes the path
    of a rank's log and returns its name on the page, and the link to it, "" if the file is missing on this machine.
    """
    rules = _rules(records, catalog)
    return document(
        "cell.html.j2",
        run=run,
        cell=records[0].cell,
        named=_facts(records),
        records=sorted(records, key=lambda record: WORST_FIRST.index(record.verdict)),
        pasts=pasts,
        turns=turns,
        flakes=flakes,
        trend=trend,
        log_of=log_of,
        rules=rules,
        unruled=sorted({failure.id for failure in catalog.failures} - {failure for failure, _, _ in rules}),
    )


def _facts(records: Sequence[Record]) -> dict[str, str]:
    cell = records[0].cell
    resolved = {name: version for record in records for name, version in record.resolved.items()}
    facts = {
        "base": f"{cell.base}, torch {cell.stack[TORCH]}",
        "Megatron": str(cell.stack[MCORE]),
        "Transformer Engine": str(cell.stack[TE]),
        **{axis: version for axis, version in beside_mcore(cell).items() if axis != "te"},
        "compute capability": str(cell.stack[SM]),
        "GPUs": str(cell.stack[GPUS]),
        **{name: resolved.pop(name, "") for name in ("image", "host", "host driver", "user-mode driver")},
        "Python": resolved.pop("python", ""),
        "resolved": ", ".join(f"{name} {version}" for name, version in sorted(resolved.items())),
        "notes": "; ".join(dict.fromkeys(one_line(note) for record in records for note in record.notes)),
    }
    return {name: fact for name, fact in facts.items() if fact != "none"}


def _rules(records: Sequence[Record], catalog: Catalog) -> list[tuple[str, Grounds, tuple[str, ...]]]:
    """Return the ruling on each failure as a whole, as `megatrix check CELL` prints it, and on its cases that differ.

    A rule is a failure, its ruling, and the cases for which it differs from the ruling on the whole failure.
    """
    cell = reported_cells(catalog).get(records[0].cell.id, records[0].cell)
    rules = []
    for failure in catalog.failures:
        whole = grounds.of_cell(catalog, failure, cell)
        cases: dict[Grounds, list[str]] = {} if whole.expectation is Expectation.UNKNOWN else {whole: []}
        for record in records:
            if record.failure == failure.id:
                cases.setdefault(grounds.of_record(catalog, failure, record), []).append(record.case)
        rules += [
            (str(failure.id), ruling, () if ruling == whole else tuple(dict.fromkeys(names)))
            for ruling, names in cases.items()
        ]
    return rules


@dataclass(frozen=True)
class Trend:
    """Durations as a line, in SVG user units: its width, its points, and the x of each step."""

    width: int
    line: str
    steps: tuple[int, ...]
    text: str


def trend(nights: Sequence[PastResult]) -> Trend:
    """Return the durations of two or more nights in which a case ran; nights are 9 apart, the line is 60 high."""
    seconds = [night.seconds for night in nights]
    longest = max(*seconds, 0.001)
    points = (f"{9 * number + 4},{round(56 - 52 * value / longest, 1)}" for number, value in enumerate(seconds))
    marked = steps(seconds)
    changes = [f"from {seconds[at - 1]:.1f} s to {seconds[at]:.1f} s at {nights[at].run}" for at in marked]
    text = f"{min(seconds):.1f} to {longest:.1f} s in {len(nights)} runs; "
    text += f"steps {'; '.join(changes)}" if changes else "no step"
    return Trend(9 * len(nights), " ".join(points), tuple(9 * at + 4 for at in marked), text)
