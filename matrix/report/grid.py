"""The matrix as HTML tables: one per failure and level; rows are base x TE x driver, columns Megatron versions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from matrix.catalog.cell import Cell
from matrix.catalog.failure import Level
from matrix.report.markup import escape, failure_link, level, mark
from matrix.report.words import group_by, row_order, version_order, worst
from matrix.verdicts.record import Record
from matrix.verdicts.text import one_line


def grids(
    records: Sequence[Record],
    links: Mapping[str, str],
    levels: Mapping[str, frozenset[Level]],
    title: Callable[[str], str] = failure_link,
) -> str:
    """Return the grids of all failures.

    `links`: case key -> link to its evidence; `levels`: the levels at which each failure has ever run on this machine;
    `title` returns the HTML for a failure's id.
    """
    groups = group_by(lambda record: (record.failure, record.level), records)
    cards = (
        _card(members, links, levels.get(failure, frozenset()), title(failure))
        for (failure, _), members in sorted(groups.items())
    )
    return f'<div class="grids">{"".join(cards)}</div>'


def _card(records: Sequence[Record], links: Mapping[str, str], ran: frozenset[Level], title: str) -> str:
    failure, shown = records[0].failure, records[0].level
    cases = ", ".join(dict.fromkeys(record.case for record in records))
    notes = Counter(note for record in records for note in record.notes)
    listed = "".join(f"<li>{escape(one_line(note))} ({count})</li>" for note, count in notes.items())
    return f"""<section class="card" aria-label="{escape(failure)}, level {shown.value}">
<div class="grid-head"><h3>{title}</h3>{level(shown)}\
<span class="soft">{escape(cases)}{_levels_never_run(ran)}</span></div>
<div class="scroll" tabindex="0">{_table(records, links)}</div>
{f'<ul class="soft">{listed}</ul>' if listed else ""}</section>
"""


def _levels_never_run(ran: frozenset[Level]) -> str:
    """Return a note on the levels above the highest at which the failure has ever run on this machine, or ""."""
    order = list(Level)
    never = order[max((order.index(each) + 1 for each in ran), default=0) :]
    return f"; never run at level {' or '.join(each.value for each in never)} on this machine" if never else ""


def _table(records: Sequence[Record], links: Mapping[str, str]) -> str:
    columns = sorted({record.cell.mcore for record in records}, key=version_order)
    rows = group_by(lambda record: _row(record.cell), sorted(records, key=lambda record: row_order(record.cell)))
    head = "".join(f'<th scope="col"><span>{escape(mcore)}</span></th>' for mcore in columns)
    body = []
    for row, members in rows.items():
        cells = group_by(lambda record: record.cell.mcore, members)
        body.append(f"<tr>{_head(*row)}{''.join(_cell(cells.get(mcore, ()), links) for mcore in columns)}</tr>")
    return (
        f'<table class="grid"><thead><tr><th scope="col" class="corner">mcore</th>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table>"
    )


def _row(cell: Cell) -> tuple[str, str, str, str]:
    return cell.base, cell.torch, cell.te, cell.driver


def _head(base: str, torch: str, te: str, driver: str) -> str:
    axes = [("torch", torch if torch not in base else "none"), ("te", te), ("driver", driver)]
    below = ", ".join(f"{axis} {value}" for axis, value in axes if value != "none")
    return f'<th scope="row">{escape(base)}{f"<small>{escape(below)}</small>" if below else ""}</th>'


def _cell(records: Sequence[Record], links: Mapping[str, str]) -> str:
    """Return one grid cell: the most urgent verdict of its cases, and how many of them have it."""
    if not records:
        return '<td class="empty">·</td>'
    verdict = worst(records)
    leading = [record for record in records if record.verdict is verdict]
    cell = records[0].cell
    cases = ", ".join(f"{record.case} {record.verdict.value}" for record in records)
    title = escape(f"{cell.base}, mcore {cell.mcore}: {cases}")
    share = f"{len(leading)} of {len(records)}" if len(leading) < len(records) else ""
    mixed = f'<span class="mixed">{share}</span>' if share else ""
    # The accessible name contains the visible text of the link, as voice control requires.
    name = f"{title}; {share}" if share else title
    return f'<td><a href="{links[leading[0].key]}" title="{title}" aria-label="{name}">{mark(verdict)}{mixed}</a></td>'
