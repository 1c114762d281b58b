"""The night as one HTML page: no network, no build step, readable without JavaScript."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from matrix.catalog.failure import Level
from matrix.report.cell_page import name_of
from matrix.report.changes import Change, Changes
from matrix.report.document import document
from matrix.report.grid import grids
from matrix.report.markup import case, copyable, escape, failure_link, level, listing, mark, word
from matrix.report.words import (
    MEANING,
    WORST_FIRST,
    group_by,
    headline,
    is_red,
    label,
    outcome_text,
    render_chain,
    verdict_reason,
    version_order,
)
from matrix.store.night import Night
from matrix.verdicts.outcome import RankEnd
from matrix.verdicts.record import SILENT, Record, Verdict
from matrix.verdicts.text import head, one_line, tail

# Cases per cause shown with log and stacks; the others failed alike and only name their log files. Keeps a page with
# 1,000 red cases of one cause at a few MB.
FULL = 5
# The cell axes with a filter, each shown only if the records have more than one value.
AXES = ("base", "mcore", "te", "driver")
# Changes of one kind shown without a click; red cases of one cause, too.
LISTED = 8


def page(night: Night, changes: Changes, levels: Mapping[str, frozenset[Level]], bisections: Sequence[str] = ()) -> str:
    """Return the page.

    `levels`: the levels at which each failure has ever run on this machine; `bisections`: names of bisection pages.
    """
    records, anchors = night.records, anchors_of(night.records)
    summary = headline(records, night.missing)
    body = f"""{_top(night)}
{_changes(changes, anchors)}
{_reds(records, anchors, changes.newly_red)}
<h2 id="matrix">Matrix</h2>
{grids(records, {key: f"#{anchor}" for key, anchor in anchors.items()}, levels)}
{_silent(records)}
{_cases(records, anchors)}
{_bisections(bisections)}
{_legend()}"""
    return document(f"{summary.colour}: {summary.text} - Megatrix {night.run}", body)


def _bisections(names: Sequence[str]) -> str:
    if not names:
        return ""
    listed = "".join(f'<li><a href="bisections/{escape(name)}.html">{escape(name)}</a></li>' for name in names)
    return f'<h2 id="bisections">Bisections</h2><section class="card"><ul class="cells">{listed}</ul></section>'


def anchors_of(records: Sequence[Record]) -> dict[str, str]:
    """Return the HTML id of each case on the page: case key -> id."""
    return {record.key: f"{'red' if is_red(record) else 'case'}-{n}" for n, record in enumerate(records, start=1)}


def _top(night: Night) -> str:
    summary = headline(night.records, night.missing)
    counts = Counter(record.verdict for record in night.records)
    cached = sum(bool(record.cached_from) for record in night.records)
    listed = "".join(f"<li>{word(verdict)} <b>{counts[verdict]}</b></li>" for verdict in WORST_FIRST if counts[verdict])
    when = (
        f"{night.began[:16].replace('T', ' ')} to {night.ended[:16].replace('T', ' ')} UTC"
        if night.began
        else "not started"
    )
    return f"""<header><p class="eyebrow">Megatrix, run <span class="id">{escape(night.run)}</span>, {escape(when)}, \
{len(night.records)} cases, {cached} from the cache</p>
<div class="banner {summary.colour}"><h1><span class="word">{summary.colour}</span> {escape(summary.text)}</h1>\
<span>{escape(summary.no_result)}</span></div>
<ul class="counts">{listed}</ul>
<nav aria-label="Sections"><a href="#changed">Changes</a><a href="#reds">Red cases</a>\
<a href="#matrix">Matrix</a><a href="#silent">No result</a><a href="#cases">All cases</a>\
<a href="#legend">Legend</a><a href="compat.html">Check a stack</a></nav></header>"""


def _changes(changes: Changes, anchors: Mapping[str, str]) -> str:
    if not changes.since:
        listed = '<p class="soft">There is no earlier run to compare with.</p>'
    elif not changes.groups and not changes.dropped:
        listed = "<p>None.</p>"
    else:
        listed = "".join(_change(change, anchors) for change in changes.groups) + _dropped(changes)
    since = f' <span class="soft">since {escape(changes.since)}</span>' if changes.since else ""
    return f'<h2 id="changed">Changes{since}</h2><section class="card">{listed}</section>'


def _change(change: Change, anchors: Mapping[str, str]) -> str:
    before = word(change.before) if change.before else "no earlier verdict"
    links = [
        f'<li><a href="#{anchors[record.key]}">{escape(record.failure)} {case(record)}</a> {level(record.level)}</li>'
        for record in change.records
    ]
    step = f"<span>{before} &rarr; {word(change.after)}</span> <b>{len(links)}</b>"
    listed = f'<ul class="cells">{"".join(links)}</ul>'
    if len(links) > LISTED or change.before is None:
        return f'<details class="row"><summary>{step}</summary>{listed}</details>'
    return f'<div class="change">{step}{listed}</div>'


def _dropped(changes: Changes) -> str:
    if not changes.dropped:
        return ""
    listed = "".join(f'<li class="id">{escape(key)}</li>' for key in changes.dropped)
    return (
        f'<details class="row"><summary>planned in the earlier run only <b>{len(changes.dropped)}</b></summary>'
        f'<ul class="cells">{listed}</ul></details>'
    )


def _reds(records: Sequence[Record], anchors: Mapping[str, str], new: frozenset[str]) -> str:
    """Return a card per cause: the reason, a command to reproduce it, every case; newly red causes first."""
    causes = group_by(lambda red: (red.failure, red.verdict, verdict_reason(red)), filter(is_red, records))
    cards = [_cause(members, anchors, new) for members in sorted(causes.values(), key=lambda reds: _urgency(reds, new))]
    listed = "".join(cards) or '<section class="card"><p>None.</p></section>'
    return f'<h2 id="reds">Red cases</h2>{listed}'


def _urgency(reds: Sequence[Record], new: frozenset[str]) -> tuple[bool, int]:
    return not any(red.key in new for red in reds), WORST_FIRST.index(reds[0].verdict)


def _cause(reds: Sequence[Record], anchors: Mapping[str, str], new: frozenset[str]) -> str:
    first, count = reds[0], f" in {len(reds)} cases" if len(reds) > 1 else ""
    members = [_member(red, anchors[red.key], new=red.key in new, full=n < FULL) for n, red in enumerate(reds)]
    listed, more = "".join(members[:LISTED]), "".join(members[LISTED:])
    if more:
        listed += f'<details class="member"><summary>{len(reds) - LISTED} more</summary>{more}</details>'
    return f"""<section class="card"><div class="cause">{mark(first.verdict)}<div>
<h3>{first.verdict.value}: {failure_link(first.failure)}{count}</h3><p>{escape(verdict_reason(first))}</p>
<p class="soft">{MEANING[first.verdict]}</p></div></div>{copyable(first.reproduce)}{listed}</section>
"""


def _member(red: Record, anchor: str, *, new: bool, full: bool) -> str:
    outcome = red.outcome
    facts = {
        "expected": red.expectation.value,
        "outcome": outcome_text(outcome),
        "signature": red.signature
        or ("no signature of this failure matched" if red.verdict is not Verdict.VANISHED else ""),
        "matches failure": red.other or "",
        "notes": "; ".join(map(one_line, red.notes)),
        "earlier attempts": "; ".join(map(one_line, outcome.attempts)),
        "reason in plan": "; ".join(one_line(str(reason)) for reason in red.why),
        "resolved": ", ".join(f"{name} {version}" for name, version in red.resolved.items()),
        "leftover processes": f"{outcome.leftovers} processes were running after their rank ended"
        if outcome.leftovers
        else "",
        "duration": f"{outcome.seconds:.1f} s" + (f", cached from run {red.cached_from}" if red.cached_from else ""),
    }
    listed = "".join(f"<dt>{name}</dt><dd>{escape(fact)}</dd>" for name, fact in facts.items() if fact)
    more = f'<p><a href="cells/{name_of(red.cell.id)}">All results of this cell</a></p>'
    parts = [copyable(red.reproduce), f"<dl>{listed}</dl>{more}"]
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
        parts.append(f'<p class="soft">Log and stacks are shown for the first {FULL} cases only.</p>')
    badge = level(red.level) + (' <span class="level new">new</span>' if new else "")
    return f'<details class="member" id="{anchor}"><summary>{case(red)} {badge}</summary>{"".join(parts)}</details>'


def _ranks(ranks: Sequence[RankEnd]) -> str:
    lines = []
    for rank in ranks:
        end = (
            "returned"
            if rank.returned
            else f"exit code {rank.exit_code}"
            if rank.exit_code is not None
            else "no exit code"
        )
        stopped = ", stopped by the supervisor" if rank.stopped else ""
        lines.append(f"rank {rank.rank}: {end}{stopped}, after {rank.seconds:.1f} s  {rank.log}")
    return "\n".join(lines)


def _silent(records: Sequence[Record]) -> str:
    groups = group_by(
        lambda record: (record.verdict, verdict_reason(record)), (each for each in records if each.verdict in SILENT)
    )
    rows = "".join(
        f'<details class="row"><summary>{word(verdict)} <b>{len(members)}</b>: {escape(reason)}</summary>'
        f'<ul class="cells">{"".join(map(_named, members))}</ul></details>'
        for (verdict, reason), members in sorted(groups.items(), key=lambda group: -len(group[1]))
    )
    listed = rows or "<p>Every planned case ran.</p>"
    return f'<h2 id="silent">No result</h2><section class="card">{listed}</section>'


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
<div class="filters script-only"><label>search<input id="filter-text" type="search" size="26" \
placeholder="torch-2.4 mcore-0.8"></label>{selects}<output id="shown" aria-live="polite"></output></div>
<table class="cases"><thead><tr><th scope="col">verdict</th><th scope="col">case</th><th scope="col">cell</th>\
<th scope="col">outcome</th><th scope="col">duration</th><th scope="col">reproduce</th></tr></thead>
<tbody>{rows}</tbody></table></section>"""


def _case(record: Record, anchor: str, number: int) -> str:
    verdict, red = record.verdict, is_red(record)
    text = verdict_reason(record)
    if not red and verdict not in SILENT:
        text = f"expected {record.expectation.value}, {text}"
    because = f'<a href="#{anchor}">{escape(text)}</a>' if red else escape(text)
    duration = f"{record.outcome.seconds:.1f} s" if verdict not in SILENT else ""
    cached = f" (cached from run {record.cached_from})" if record.cached_from else ""
    notes = "".join(f"<br>{escape(one_line(note))}" for note in record.notes)
    axes = "".join(f' data-{axis}="{escape(getattr(record.cell, axis))}"' for axis in AXES)
    return (
        f'<tr id="case-{number}" data-verdict="{verdict.value}" data-colour="{verdict.colour}"'
        f' data-failure="{escape(record.failure)}" data-level="{record.level.value}"{axes}><td>{word(verdict)}</td>'
        f"<td>{escape(record.failure)} {escape(record.case)} {level(record.level)}</td>"
        f'<td class="cell id"><a href="cells/{name_of(record.cell.id)}">{escape(label(record.cell))}</a></td>'
        f'<td class="because">{because}{escape(cached)}{notes}</td><td class="number">{duration}</td>'
        f'<td><button class="script-only" data-copy="{escape(record.reproduce)}">copy</button></td></tr>\n'
    )


def _legend() -> str:
    rows = "".join(f"<li>{word(verdict)}<span>{MEANING[verdict]}</span></li>" for verdict in WORST_FIRST)
    return f"""<h2 id="legend">Legend</h2><section class="card"><ul class="legend">{rows}</ul>
<p class="soft">Marks: a circle is green, a square is red, a diamond is learned, an outline has no result.
"1 of 3" beside a mark: 1 of the 3 cases of this cell has this verdict. A dot: not planned.</p>
<p class="soft">Levels: contract compares the APIs of both sides; cpu runs the real code without a GPU; gpu runs the
full stack. A result at one level does not apply to another.</p></section>"""
