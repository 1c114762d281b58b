"""The page of one cell: the reason for each verdict, a command to reproduce it, its packages, its history."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from matrix.catalog.failure import Expectation, Failure
from matrix.catalog.model import Catalog
from matrix.planning.explain import reported_cells
from matrix.report import rulings
from matrix.report.document import document
from matrix.report.markup import copyable, escape, level, listing, word
from matrix.report.rulings import Ruling
from matrix.report.strip import strip, trend
from matrix.report.words import MEANING, WORST_FIRST, is_red, label, outcome_text, render_chain, verdict_reason
from matrix.store.trend import PastResult, Pasts, flakes, turns
from matrix.verdicts.record import SILENT, Record
from matrix.verdicts.text import head, one_line, tail

HOME = "../index.html"
SHOWN = 10  # colour changes listed for a case


def name_of(cell: str) -> str:
    """Return the file name of a cell's page: its id, other characters than [A-Za-z0-9_.-] replaced, and a digest."""
    plain = re.sub(r"[^\w.-]", "_", cell, flags=re.ASCII)[:100]
    return f"{plain}-{hashlib.sha256(cell.encode(errors='surrogatepass')).hexdigest()[:8]}.html"


def cell_page(
    run: str, records: Sequence[Record], catalog: Catalog, pasts: Pasts, link_of: Callable[[str], str]
) -> str:
    """Return the page.

    `records`: all records of one cell; `pasts`: the results of each case in earlier nights; `link_of` returns the
    relative link to a log file, "" if the file is missing.
    """
    cell = records[0].cell
    ordered = sorted(records, key=lambda record: WORST_FIRST.index(record.verdict))
    body = f"""<header><p class="eyebrow"><a href="{HOME}">Megatrix, run <span class="id">{escape(run)}</span></a>, \
cell <span class="id">{escape(cell.id)}</span></p><h1>{escape(label(cell))}</h1></header>
<section class="card"><dl class="facts">{_facts(records)}</dl></section>
{"".join(_case(record, pasts.get(record.key, ()), link_of) for record in ordered)}
<h2>Rules for this cell</h2>
{_explained(records, catalog)}"""
    return document(f"{label(cell)} - Megatrix {run}", body)


def _facts(records: Sequence[Record]) -> str:
    cell = records[0].cell
    resolved: dict[str, str] = {}
    for record in records:
        resolved |= record.resolved
    notes = dict.fromkeys(one_line(note) for record in records for note in record.notes)
    facts = {
        "base": f"{cell.base}, torch {cell.torch}",
        "Megatron": cell.mcore,
        "Transformer Engine": cell.te,
        "driver": cell.driver,
        "compute capability": cell.sm,
        "GPUs": cell.gpus,
        "image": resolved.pop("image", ""),
        "host": resolved.pop("host", ""),
        "host driver": resolved.pop("host driver", ""),
        "user-mode driver": resolved.pop("user-mode driver", ""),
        "Python": resolved.pop("python", ""),
        "resolved": ", ".join(f"{name} {version}" for name, version in sorted(resolved.items())),
        "notes": "; ".join(notes),
    }
    return "".join(f"<dt>{name}</dt><dd>{escape(fact)}</dd>" for name, fact in facts.items() if fact and fact != "none")


def _case(record: Record, pasts: Sequence[PastResult], link_of: Callable[[str], str]) -> str:
    outcome = record.outcome
    cached = f", cached from run {record.cached_from}" if record.cached_from else ""
    facts = {
        "expected": record.expectation.value,
        "outcome": verdict_reason(record) if record.verdict in SILENT else outcome_text(outcome),
        "signature": record.signature or "",
        "matches failure": record.other or "",
        "earlier attempts": "; ".join(map(one_line, outcome.attempts)),
        "reason in plan": "; ".join(one_line(str(reason)) for reason in record.why),
        "duration": "" if record.verdict in SILENT else f"{outcome.seconds:.1f} s{cached}",
        "started": record.started,
    }
    listed = "".join(f"<dt>{name}</dt><dd>{escape(fact)}</dd>" for name, fact in facts.items() if fact)
    parts = [copyable(record.reproduce), f"<dl>{listed}</dl>"]
    if outcome.chain:
        parts.append(f"<h3>exceptions, root cause first</h3>{listing(render_chain(outcome.chain))}")
    parts += [_ranks(record, link_of), _evidence(record), _history(pasts)]
    failure = f'<a href="../failures/{escape(record.failure)}.html">{escape(record.failure)}</a>'
    return f"""<h2>{word(record.verdict)}: {failure} \
{escape(record.case)} {level(record.level)}</h2>
<section class="card"><p class="soft">{MEANING[record.verdict]}</p>{"".join(parts)}</section>"""


def _ranks(record: Record, link_of: Callable[[str], str]) -> str:
    rows = []
    for rank in record.outcome.ranks:
        end = (
            "returned"
            if rank.returned
            else f"exit code {rank.exit_code}"
            if rank.exit_code is not None
            else "no exit code"
        )
        if rank.stopped:
            end += ", stopped by the supervisor"
        link = link_of(rank.log) if rank.log else ""
        log = f'<a href="{escape(link)}">{escape(rank.log)}</a>' if link else escape(rank.log)
        rows.append(
            f"<tr><td>{rank.rank}</td><td>{escape(end)}</td><td class='number'>{rank.seconds:.1f} s</td>"
            f"<td class='id'>{log}</td></tr>"
        )
    if not rows:
        return ""
    return (
        '<h3>ranks</h3><div class="scroll" tabindex="0"><table class="cases"><thead><tr>'
        '<th scope="col">rank</th><th scope="col">end</th>'
        f'<th scope="col">after</th><th scope="col">log</th></tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
    )


def _evidence(record: Record) -> str:
    outcome = record.outcome
    parts = [
        f"<h3>stacks of rank {rank.rank} at the deadline</h3>{listing(head(rank.stacks))}"
        for rank in outcome.ranks
        if rank.stacks
    ]
    if outcome.evidence and is_red(record):
        of_rank = "" if outcome.rank is None else f" of rank {outcome.rank}"
        parts.append(f"<h3>end of the log{of_rank}</h3>{listing(tail(outcome.evidence))}")
    return "".join(parts)


def _history(pasts: Sequence[PastResult]) -> str:
    if len(pasts) < 2:
        return '<h3>history</h3><p class="soft">This is the first night.</p>'
    ran = [past for past in pasts if past.ran]
    when = f"First ran in {ran[0].run}, last in {ran[-1].run}" if ran else "Never ran"
    listed = "".join(
        f"<li>{escape(after.run)}: {word(before.verdict)} &rarr; {word(after.verdict)}, "
        f"{'its inputs changed' if changed else 'its inputs did not change: a flake'}</li>"
        for before, after, changed in turns(pasts)[-SHOWN:]
    )
    return (
        f'<h3>history: the last {len(pasts)} nights</h3><div class="scroll" tabindex="0">{strip(pasts)}</div>'
        f'<p class="soft">One bar per night: full height is red, half is green, pale is cached. {escape(when)}.</p>'
        f"{f'<ul>{listed}</ul>' if listed else ''}<p>Flakes: {escape(str(flakes(pasts)))}.</p>"
        f'<h3>duration</h3><div class="scroll" tabindex="0">{trend(pasts) or "<p>Fewer than two runs.</p>"}</div>'
    )


def _explained(records: Sequence[Record], catalog: Catalog) -> str:
    """Return a row for each failure as a whole, as `megatrix explain` prints it, and for its cases that differ."""
    id = records[0].cell.id
    cell = reported_cells(catalog).get(id, records[0].cell)
    rows, unknown = [], []
    for failure in catalog.failures:
        whole = rulings.of_cell(catalog, failure, cell)
        cases: dict[Ruling, list[str]] = {} if whole.expectation is Expectation.UNKNOWN else {whole: []}
        for record in records:
            if record.failure == failure.id:
                cases.setdefault(rulings.of_record(catalog, failure, record), []).append(record.case)
        if not cases:
            unknown.append(failure.id)
        rows += [_ruled(failure, ruling, [] if ruling == whole else names) for ruling, names in cases.items()]
    return (
        f'<section class="card">{copyable(f"megatrix explain {id}")}<div class="scroll" tabindex="0">'
        '<table class="cases"><thead><tr><th scope="col">expected</th><th scope="col">failure</th>'
        f'<th scope="col">rule</th></tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
        f'<p class="soft">Failures without a rule: {escape(", ".join(unknown) or "none")}.</p></section>'
    )


def _ruled(failure: Failure, ruling: Ruling, cases: Iterable[str]) -> str:
    named = f"<a href='../failures/{escape(failure.id)}.html'>{escape(failure.id)}</a>"
    in_cases = f" in case {escape(names)}" if (names := ", ".join(dict.fromkeys(cases))) else ""
    return (
        f"<tr><td>{ruling.expectation.value}</td><td>{named}{in_cases}</td>"
        f"<td class='because'>{escape(ruling)}</td></tr>"
    )


def by_cell(records: Iterable[Record]) -> Mapping[str, list[Record]]:
    """Return the records of each cell by the cell's id; cells and records keep their order."""
    cells: dict[str, list[Record]] = {}
    for record in records:
        cells.setdefault(record.cell.id, []).append(record)
    return cells
