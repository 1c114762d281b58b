"""The page of one failure: its catalog entry, published claims about it, and the results of the run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matrix.authoring.examples import SHOWS, read, scrubbed
from matrix.catalog.conform import MALFORMED
from matrix.catalog.failure import Expectation, Failure, Level
from matrix.catalog.model import Catalog
from matrix.report import rulings
from matrix.report.chart import chart
from matrix.report.document import document
from matrix.report.grid import grids
from matrix.report.page import anchors_of
from matrix.report.rulings import Ruling
from matrix.report.stack_map import StackMap
from matrix.report.strip import Strip, strip
from matrix.report.words import WORST_FIRST, render_chain
from matrix.store.night import Night
from matrix.store.trend import Flakes, Pasts, flakes, turns
from matrix.verdicts.record import Record, Verdict
from matrix.verdicts.text import tail

LINES = 40  # of an example's log: a crash with its native stack
ROWS = 100  # shown of the cases whose verdict changed
SHOWN = (Verdict.REPRODUCED, Verdict.REGRESSED)  # the verdicts of a case in which the failure occurred


@dataclass(frozen=True)
class FailureHistory:
    """The nights of a failure: the first and last in which it occurred ("" for none), and the cases that changed.

    `changed` holds at most ROWS cases, `more` is the number of further ones.
    """

    nights: int
    first: str
    last: str
    flakes: Flakes
    cases: int
    unchanged: int
    changed: tuple[tuple[Record, Strip], ...]
    more: int


def failure_page(
    failure: Failure, map: StackMap, night: Night, levels: Mapping[str, frozenset[Level]], pasts: Pasts | None = None
) -> str:
    """Return the page.

    `map` has the catalog, `night` is the whole run. `levels`: the levels at which each failure has ever run on this
    machine; `pasts`: the results of each case in earlier nights. Without `pasts` the page is one of a site, without
    history and links to single cases.
    """
    records = [record for record in night.records if record.failure == failure.id]
    anchors = anchors_of(night.records)
    links = {key: f"../index.html#{one}" if pasts is not None else "" for key, one in anchors.items()}
    return document(
        "failure.html.j2",
        failure=failure,
        run=night.run,
        references={text: _thread(text) for text in failure.references},
        stand_ins=[f"{', '.join(one.packages)}: {one.reason}" for one in failure.stand_in],
        masked=[f"{one.by}: {one.reason}" for one in failure.masked],
        counts=_counts(records),
        affected=map.affected[failure.id],
        rules={ruling: _counts(members) for ruling, members in _by_rule(failure, map.catalog, records).items()},
        grids=grids(records, links, levels),
        chart=chart(failure.folder, records),
        example=_example(failure),
        public=pasts is None,
        history=_history(records, pasts or {}),
        signatures={
            one.name: {name: value for name, value in vars(one).items() if name != "name" and value is not None}
            for one in failure.signature
        },
    )


def _thread(text: str) -> str:
    """Return the URL of the thread OWNER/NAME#NUMBER, "" for anything else."""
    thread = re.fullmatch(r"([\w.-]+/[\w.-]+)#(\d+)", text)
    return f"https://github.com/{thread[1]}/issues/{thread[2]}" if thread else ""


def _example(failure: Failure) -> str:
    """Return the exceptions, or the end of the log, of the first example of the failure; "" where none can be read."""
    for path in sorted((failure.folder / "examples" / SHOWS).glob("*.json")):
        try:
            outcome = scrubbed(read(path))
        except (OSError, *MALFORMED):  # `catalog check` reports it
            continue
        return render_chain(outcome.chain) if outcome.chain else tail(outcome.evidence or outcome.reason, LINES)
    return ""


def _counts(records: Sequence[Record]) -> dict[tuple[Verdict, Level], int]:
    """Return how many records have each verdict at each level, most urgent first."""
    counts = Counter((record.verdict, record.level) for record in records)
    return dict(sorted(counts.items(), key=lambda each: (WORST_FIRST.index(each[0][0]), list(Level).index(each[0][1]))))


def _by_rule(failure: Failure, catalog: Catalog, records: Sequence[Record]) -> dict[Ruling, list[Record]]:
    """Return the records under each rule of the failure, and under other rulings that they are based on."""
    under: dict[Ruling, list[Record]] = {
        rulings.of_rule(kind, rule): []
        for kind, rules in ((Expectation.BROKEN, failure.affected), (Expectation.WORKS, failure.works))
        for rule in rules
    }
    for record in records:
        under.setdefault(rulings.of_record(catalog, failure, record), []).append(record)
    return under


def _history(records: Sequence[Record], pasts: Pasts) -> FailureHistory | None:
    """Return the history of the failure, None for fewer than two nights."""
    histories = [(record, pasts.get(record.key, ())) for record in records]
    nights = {past.number: past.run for _, each in histories for past in each}
    if len(nights) < 2:
        return None
    occurred = {past.number for _, each in histories for past in each if past.ran and past.verdict in SHOWN}
    first, last = (nights[min(occurred)], nights[max(occurred)]) if occurred else ("", "")
    each_flakes = [flakes(each) for _, each in histories]
    flaked = Flakes(sum(one.flipped for one in each_flakes), sum(one.again for one in each_flakes))
    changed = [(record, each) for record, each in histories if turns(each)]
    return FailureHistory(
        len(nights), first, last, flaked, len(histories), len(histories) - len(changed),
        tuple((record, strip(each)) for record, each in changed[:ROWS]), max(len(changed) - ROWS, 0),
    )  # fmt: skip
