"""The night as one HTML page: no network, no build, readable without its script."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from matrix.catalog.failure import Level
from matrix.report.cell_page import name_of
from matrix.report.changes import Change, Changes
from matrix.report.document import document
from matrix.report.grid import grids
from matrix.report.markup import about, case, escape, level, listing, mark, paste, word
from matrix.report.words import (
    MEANING,
    WORST_FIRST,
    by,
    happened,
    headline,
    is_red,
    label,
    render_chain,
    version_order,
    why,
)
from matrix.store.night import Night
from matrix.verdicts.outcome import RankEnd
from matrix.verdicts.record import SILENT, Record, Verdict
from matrix.verdicts.text import head, one_line, tail

# Members of one cause that carry their log and stacks; the others failed alike and name where theirs lie. Keeps a page
# of 1,000 reds of one cause at a few MB.
FULL = 5
# The axes of a cell that cases can be filtered by, where there is more than one value.
AXES = ("base", "mcore", "te", "driver")
# Changes of one kind shown without a click.
LISTED = 8


def page(night: Night, changes: Changes, levels: Mapping[str, frozenset[Level]], bisections: Sequence[str] = ()) -> str:
    """Return the page.

    `levels`: the levels at which each failure has ever run on this machine; `bisections`: the names of their pages.
    """
    records, anchors = night.records, anchors_of(night.records)
    told = headline(records)
    body = f"""{_top(night)}
{_changes(changes, anchors)}
{_reds(records, anchors, changes.newly_red)}
<h2 id="matrix">The matrix</h2>
{grids(records, {key: f"#{anchor}" for key, anchor in anchors.items()}, levels)}
{_silent(records)}
{_cases(records, anchors)}
{_bisections(bisections)}
{_legend()}"""
    return document(f"{told.colour}: {told.text} - Megatrix {night.run}", body)


def _bisections(names: Sequence[str]) -> str:
    if not names:
        return ""
    listed = "".join(f'<li><a href="bisections/{escape(name)}.html">{escape(name)}</a></li>' for name in names)
    return f'<h2 id="bisections">Bisections</h2><section class="card"><ul class="cells">{listed}</ul></section>'


def anchors_of(records: Sequence[Record]) -> dict[str, str]:
    """Return the place of each case on the page: case key -> id."""
    return {record.key: f"{'red' if is_red(record) else 'case'}-{n}" for n, record in enumerate(records, start=1)}


def _top(night: Night) -> str:
    told = headline(night.records)
    counts = Counter(record.verdict for record in night.records)
    cached = sum(bool(record.cached_from) for record in night.records)
    listed = "".join(f"<li>{word(verdict)} <b>{counts[verdict]}</b></li>" for verdict in WORST_FIRST if counts[verdict])
    when = (
        f"{night.began[:16].replace('T', ' ')} to {night.ended[:16].replace('T', ' ')} UTC"
        if night.began
        else "not started"
    )
    return f"""<header><p class="eyebrow">Megatrix, run <span class="id">{escape(night.run)}</span>, {escape(when)}, \
{len(night.records)} cases, {cached} of them from the cache</p>
<div class="banner {told.colour}"><h1><span class="word">{told.colour}</span> {escape(told.text)}</h1>\
<span>{escape(told.beside)}</span></div>
<ul class="counts">{listed}</ul>
<nav aria-label="Sections"><a href="#changed">What changed</a><a href="#reds">What is red</a>\
<a href="#matrix">The matrix</a><a href="#silent">What said nothing</a><a href="#cases">All cases</a>\
<a href="#legend">Legend</a><a href="compat.html">What breaks in my stack?</a></nav></header>"""


def _changes(changes: Changes, anchors: Mapping[str, str]) -> str:
    if not changes.since:
        said = '<p class="soft">There is no earlier run to compare with.</p>'
    elif not changes.groups and not changes.dropped:
        said = f'<p>Nothing, since <span class="id">{escape(changes.since)}</span>.</p>'
    else:
        said = "".join(_change(change, anchors) for change in changes.groups) + _dropped(changes)
    since = f' <span class="soft">since {escape(changes.since)}</span>' if changes.since else ""
    return f'<h2 id="changed">What changed{since}</h2><section class="card">{said}</section>'


def _change(change: Change, anchors: Mapping[str, str]) -> str:
    before = word(change.before) if change.before else "no verdict before"
    links = [
        f'<li><a href="#{anchors[record.key]}">{escape(record.failure)} {case(record)}</a> {level(record.level)}</li>'
        for record in change.records
    ]
    way = f"<span>{before} &rarr; {word(change.after)}</span> <b>{len(links)}</b>"
    listed = f'<ul class="cells">{"".join(links)}</ul>'
    if len(links) > LISTED or change.before is None:
        return f'<details class="row"><summary>{way}</summary>{listed}</details>'
    return f'<div class="change">{way}{listed}</div>'


def _dropped(changes: Changes) -> str:
    if not changes.dropped:
        return ""
    listed = "".join(f'<li class="id">{escape(key)}</li>' for key in changes.dropped)
    return (
        f'<details class="row"><summary>planned then, not planned now <b>{len(changes.dropped)}</b></summary>'
        f'<ul class="cells">{listed}</ul></details>'
    )


def _reds(records: Sequence[Record], anchors: Mapping[str, str], new: frozenset[str]) -> str:
    """Return a card per cause: why in a sentence, a line to paste, then every case; newly red causes come first."""
    causes = by(lambda red: (red.failure, red.verdict, why(red)), filter(is_red, records))
    cards = [_cause(members, anchors, new) for members in sorted(causes.values(), key=lambda reds: _urgency(reds, new))]
    said = "".join(cards) or '<section class="card"><p>Nothing.</p></section>'
    return f'<h2 id="reds">What is red</h2>{said}'


def _urgency(reds: Sequence[Record], new: frozenset[str]) -> tuple[bool, int]:
    return not any(red.key in new for red in reds), WORST_FIRST.index(reds[0].verdict)


def _cause(reds: Sequence[Record], anchors: Mapping[str, str], new: frozenset[str]) -> str:
    first, count = reds[0], f" in {len(reds)} cases" if len(reds) > 1 else ""
    members = [_member(red, anchors[red.key], new=red.key in new, full=n < FULL) for n, red in enumerate(reds)]
    listed, more = "".join(members[:LISTED]), "".join(members[LISTED:])
    if more:
        listed += f'<details class="member"><summary>{len(reds) - LISTED} more</summary>{more}</details>'
    return f"""<section class="card"><div class="cause">{mark(first.verdict)}<div>
<h3>{first.verdict.value}: {about(first.failure)}{count}</h3><p>{escape(why(first))}</p>
<p class="soft">{MEANING[first.verdict]}</p></div></div>{paste(first.reproduce)}{listed}</section>
"""


def _member(red: Record, anchor: str, *, new: bool, full: bool) -> str:
    outcome = red.outcome
    facts = {
        "expected": red.expectation.value,
        "happened": happened(outcome),
        "signature": red.signature or ("none of this failure matched" if red.verdict is not Verdict.VANISHED else ""),
        "looks like": red.other or "",
        "notes": "; ".join(map(one_line, red.notes)),
        "earlier attempts": "; ".join(map(one_line, outcome.attempts)),
        "in the plan because": "; ".join(one_line(str(reason)) for reason in red.why),
        "resolved": ", ".join(f"{name} {version}" for name, version in red.resolved.items()),
        "left behind": f"{outcome.leftovers} processes outlived their rank" if outcome.leftovers else "",
        "took": f"{outcome.seconds:.1f} s" + (f", from the cache: ran in {red.cached_from}" if red.cached_from else ""),
    }
    listed = "".join(f"<dt>{name}</dt><dd>{escape(fact)}</dd>" for name, fact in facts.items() if fact)
    more = f'<p><a href="cells/{name_of(red.cell.id)}">Everything of this cell</a></p>'
    parts = [paste(red.reproduce), f"<dl>{listed}</dl>{more}"]
    if outcome.chain:
        parts.append(f"<h4>exceptions, root cause first</h4>{listing(render_chain(outcome.chain))}")
    if outcome.ranks:
        parts.append(f"<h4>ranks</h4>{listing(_ranks(outcome.ranks))}")
    if full:
        parts += [
            f"<h4>stacks of rank {rank.rank} at the deadline</h4>{listing(head(rank.stacks))}"
            for rank in outcome.ranks
            if rank.stacks
        ]
        if outcome.evidence:
            of_rank = "" if outcome.rank is None else f" of rank {outcome.rank}"
            parts.append(f"<h4>end of the log{of_rank}</h4>{listing(tail(outcome.evidence))}")
    else:
        parts.append(f'<p class="soft">Log and stacks stand with the first {FULL} of these cases.</p>')
    badge = level(red.level) + (' <span class="level new">new</span>' if new else "")
    return f'<details class="member" id="{anchor}"><summary>{case(red)} {badge}</summary>{"".join(parts)}</details>'


def _ranks(ranks: Sequence[RankEnd]) -> str:
    lines = []
    for rank in ranks:
        end = "returned" if rank.returned else f"exit code {rank.exit_code}" if rank.exit_code is not None else "no end"
        stopped = ", ended by the supervisor" if rank.stopped else ""
        lines.append(f"rank {rank.rank}: {end}{stopped}, after {rank.seconds:.1f} s  {rank.log}")
    return "\n".join(lines)


def _silent(records: Sequence[Record]) -> str:
    groups = by(lambda record: (record.verdict, why(record)), (each for each in records if each.verdict in SILENT))
    rows = "".join(
        f'<details class="row"><summary>{word(verdict)} <b>{len(members)}</b>: {escape(reason)}</summary>'
        f'<ul class="cells">{"".join(map(_named, members))}</ul></details>'
        for (verdict, reason), members in sorted(groups.items(), key=lambda group: -len(group[1]))
    )
    said = rows or "<p>Everything that was planned ran.</p>"
    return f'<h2 id="silent">What said nothing</h2><section class="card">{said}</section>'


def _named(record: Record) -> str:
    return f"<li>{escape(record.failure)} {case(record)} {level(record.level)}</li>"


def _cases(records: Sequence[Record], anchors: Mapping[str, str]) -> str:
    verdicts = [verdict.value for verdict in WORST_FIRST if any(record.verdict is verdict for record in records)]
    choices = {
        "verdict": ["red"] * any(map(is_red, records)) + verdicts,
        "failure": sorted({record.failure for record in records}),
        "level": [each.value for each in Level if any(record.level is each for record in records)],
        **{axis: sorted({getattr(record.cell, axis) for record in records}, key=version_order) for axis in AXES},
    }
    selects = "".join(
        f'<label>{name}<select id="filter-{name}"><option value="">all</option>'
        + "".join(f"<option>{escape(value)}</option>" for value in values)
        + "</select></label>"
        for name, values in choices.items()
        if name not in AXES or len(values) > 1
    )
    rows = "".join(_case(record, anchors[record.key], number) for number, record in enumerate(records, start=1))
    return f"""<h2 id="cases-head">All cases</h2><section class="card" id="cases">
<div class="filters script-only"><label>words<input id="filter-text" type="search" size="26" \
placeholder="torch-2.4 mcore-0.8"></label>{selects}<output id="shown" aria-live="polite"></output></div>
<table class="cases"><thead><tr><th scope="col">verdict</th><th scope="col">case</th><th scope="col">cell</th>\
<th scope="col">what happened</th><th scope="col">took</th><th scope="col">reproduce</th></tr></thead>
<tbody>{rows}</tbody></table></section>"""


def _case(record: Record, anchor: str, number: int) -> str:
    verdict, red = record.verdict, is_red(record)
    said = why(record)
    if not red and verdict not in SILENT:
        said = f"expected {record.expectation.value}, {said}"
    because = f'<a href="#{anchor}">{escape(said)}</a>' if red else escape(said)
    spent = f"{record.outcome.seconds:.1f} s" if verdict not in SILENT else ""
    cached = f" cached, ran in {record.cached_from}." if record.cached_from else ""
    notes = "".join(f"<br>{escape(one_line(note))}" for note in record.notes)
    axes = "".join(f' data-{axis}="{escape(getattr(record.cell, axis))}"' for axis in AXES)
    return (
        f'<tr id="case-{number}" data-verdict="{verdict.value}" data-colour="{verdict.colour}"'
        f' data-failure="{escape(record.failure)}" data-level="{record.level.value}"{axes}><td>{word(verdict)}</td>'
        f"<td>{escape(record.failure)} {escape(record.case)} {level(record.level)}</td>"
        f'<td class="cell id"><a href="cells/{name_of(record.cell.id)}">{escape(label(record.cell))}</a></td>'
        f'<td class="because">{because}{escape(cached)}{notes}</td><td class="number">{spent}</td>'
        f'<td><button class="script-only" data-copy="{escape(record.reproduce)}">copy</button></td></tr>\n'
    )


def _legend() -> str:
    rows = "".join(f"<li>{word(verdict)}<span>{MEANING[verdict]}</span></li>" for verdict in WORST_FIRST)
    return f"""<h2 id="legend">Legend</h2><section class="card"><ul class="legend">{rows}</ul>
<p class="soft">Round is green, square is red, a diamond is news, an outline said nothing. 1/3 beside a mark: one of the
cell's three cases says so. A dot: not planned. Levels: contract reads both sides' API; cpu runs the real code
without a GPU; gpu is the full stack. None stands for another.</p></section>"""
