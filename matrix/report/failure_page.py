"""The page of one failure: its catalog entry, published claims about it, and the results of the run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from matrix.catalog.failure import Expectation, Failure, Level, Signature
from matrix.catalog.model import Catalog
from matrix.report import rulings
from matrix.report.cell_page import name_of
from matrix.report.chart import chart
from matrix.report.document import document
from matrix.report.grid import grids
from matrix.report.markup import case, escape, level, word
from matrix.report.page import anchors_of
from matrix.report.rulings import Ruling
from matrix.report.strip import strip
from matrix.report.words import WORST_FIRST
from matrix.store.night import Night
from matrix.store.trend import Flakes, Pasts, flakes, turns
from matrix.verdicts.record import Record, Verdict

HOME = "../index.html"
ROWS = 100  # shown of the cases whose verdict changed
SHOWN = (Verdict.REPRODUCED, Verdict.REGRESSED)  # the verdicts of a case in which the failure occurred


def failure_page(
    failure: Failure, catalog: Catalog, night: Night, levels: Mapping[str, frozenset[Level]], pasts: Pasts
) -> str:
    """Return the page.

    `night` is the whole run. `levels`: the levels at which each failure has ever run on this machine; `pasts`: the
    results of each case in earlier nights.
    """
    records = [record for record in night.records if record.failure == failure.id]
    links = {key: f"{HOME}#{anchor}" for key, anchor in anchors_of(night.records).items()}
    results = (
        grids(records, links, levels, escape) if records else '<section class="card"><p>Not in this run.</p></section>'
    )
    body = f"""<header><p class="eyebrow"><a href="{HOME}">Megatrix, run \
<span class="id">{escape(night.run)}</span></a>, failure \
<span class="id">{escape(failure.id)}</span></p><h1>{escape(failure.title)}</h1>
<p class="soft">{", ".join(map(_reference, failure.references))}</p></header>
<section class="card"><dl class="facts">{_facts(failure)}</dl></section>
{_claim(failure, records)}
<h2>Rules and results</h2>
{_rules(failure, catalog, records)}
{results}
{chart(failure.folder, records)}
<h2>History</h2>{_nights(records, pasts)}
<h2>Workarounds</h2>{_workarounds(failure)}
<h2>Signatures</h2>{_signatures(failure.signature)}"""
    return document(f"{failure.id}: {failure.title} - Megatrix {night.run}", body, script="")


def _reference(text: str) -> str:
    """Return OWNER/NAME#NUMBER as a link to the thread, anything else as text."""
    if thread := re.fullmatch(r"([\w.-]+/[\w.-]+)#(\d+)", text):
        return f'<a href="https://github.com/{thread[1]}/issues/{thread[2]}">{escape(text)}</a>'
    return escape(text)


def _facts(failure: Failure) -> str:
    facts = {"symptom": failure.symptom, "cause": failure.cause, "fix": failure.fix}
    facts |= {"stand-ins": "; ".join(f"{', '.join(one.packages)}: {one.reason}" for one in failure.stand_in)}
    facts |= {"masked by": "; ".join(f"{one.by}: {one.reason}" for one in failure.masked)}
    return "".join(f"<dt>{name}</dt><dd>{escape(' '.join(text.split()))}</dd>" for name, text in facts.items() if text)


def _claim(failure: Failure, records: Sequence[Record]) -> str:
    if failure.claim is None:
        return ""
    return f"""<h2>Claim and measurement</h2><div class="beside">
<section class="card"><h3>Claim</h3><p>{escape(" ".join(failure.claim.text.split()))}</p>
<p class="soft">{escape(failure.claim.source)}</p></section>
<section class="card"><h3>Measurement</h3><p>{escape(" ".join(failure.claim.measured.split()))}</p>
<p class="soft">This run: {_verdicts(records)}</p></section></div>"""


def _rules(failure: Failure, catalog: Catalog, records: Sequence[Record]) -> str:
    """Return a row for each rule: expectation, reason, and the verdicts of its cases by level."""
    under: dict[Ruling, list[Record]] = {
        rulings.of_rule(kind, rule): []
        for kind, rules in ((Expectation.BROKEN, failure.affected), (Expectation.WORKS, failure.works))
        for rule in rules
    }
    for record in records:
        under.setdefault(rulings.of_record(catalog, failure, record), []).append(record)
    rows = "".join(
        f"<tr><td>{ruling.expectation.value}</td><td class='id'>{escape(ruling.rule)}</td>"
        f"<td class='because'>{escape(ruling.reason)}</td><td>{_verdicts(members)}</td></tr>"
        for ruling, members in under.items()
    )
    return f"""<section class="card"><table class="cases">\
<thead><tr><th scope="col">expected</th><th scope="col">rule</th><th scope="col">reason</th>\
<th scope="col">this run</th></tr></thead><tbody>{rows}</tbody></table></section>"""


def _verdicts(records: Sequence[Record]) -> str:
    counts = Counter((record.verdict, record.level) for record in records)
    ordered = sorted(counts, key=lambda each: (WORST_FIRST.index(each[0]), list(Level).index(each[1])))
    items = (f"{word(verdict)} <b>{counts[verdict, at]}</b> {level(at)}" for verdict, at in ordered)
    return ", ".join(items) or "no case"


def _nights(records: Sequence[Record], pasts: Pasts) -> str:
    """Return when the failure occurred, how often its cases flaked, and the history of each case that changed."""
    histories = [(record, pasts.get(record.key, ())) for record in records]
    nights = {past.number: past.run for _, each in histories for past in each}
    if len(nights) < 2:
        return '<section class="card"><p class="soft">This is the first night.</p></section>'
    occurred = {past.number for _, each in histories for past in each if past.ran and past.verdict in SHOWN}
    when = f"first seen in {nights[min(occurred)]}, last in {nights[max(occurred)]}" if occurred else "not seen"
    each_flakes = [flakes(each) for _, each in histories]
    flaked = Flakes(sum(one.flipped for one in each_flakes), sum(one.again for one in each_flakes))
    changed = [(record, each) for record, each in histories if turns(each)]
    rows = "".join(
        f"<tr><td><a href='../cells/{name_of(record.cell.id)}'>{case(record)}</a> {level(record.level)}</td>"
        f"<td>{strip(each)}</td></tr>"
        for record, each in changed[:ROWS]
    )
    more = f"<p class='soft'>and {len(changed) - ROWS} more</p>" if len(changed) > ROWS else ""
    table = (
        f'<div class="scroll" tabindex="0"><table class="cases"><tbody>{rows}</tbody></table></div>{more}'
        if rows
        else ""
    )
    return (
        f'<section class="card"><p>In the last {len(nights)} nights: {escape(when)}. Flakes: {escape(str(flaked))}. '
        f"{len(histories) - len(changed)} of {len(histories)} cases never changed colour.</p>{table}</section>"
    )


def _workarounds(failure: Failure) -> str:
    rows = "".join(
        f"<li>{escape(one.text)} <span class='soft'>({escape(one.verified or 'not verified')})</span></li>"
        for one in failure.workaround
    )
    return f'<section class="card">{f"<ul>{rows}</ul>" if rows else "<p>None known.</p>"}</section>'


def _signatures(signatures: Sequence[Signature]) -> str:
    rows = "".join(
        f"<dt>{escape(one.name)}</dt><dd>"
        + "; ".join(
            f"{name} <code>{escape(value)}</code>"
            for name, value in vars(one).items()
            if name != "name" and value is not None
        )
        + "</dd>"
        for one in signatures
    )
    return f'<section class="card"><dl>{rows}</dl></section>'
