"""The page of one failure: its catalog entry, published claims about it, and the results of the run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from matrix.ground.catalog.codec import MalformedError
from matrix.ground.catalog.failure import Expectation, Failure, Level, Signature
from matrix.ground.catalog.folders import load_module
from matrix.ground.catalog.loading import evidence_of, night_of
from matrix.ground.catalog.model import Catalog
from matrix.ground.catalog.stack import MCORE
from matrix.ground.verdicts.record import Record, Verdict
from matrix.ground.verdicts.text import tail
from matrix.ground.verdicts.trend import Flakes, PastResult, Pasts, flakes, turns
from matrix.prove.authoring.examples import SHOWS, read, scrubbed
from matrix.prove.authoring.overview import summary
from matrix.prove.store.stored_run import Night
from matrix.show import grounds, known
from matrix.show.document import document
from matrix.show.grid import grids
from matrix.show.grounds import Grounds
from matrix.show.page import anchors_of
from matrix.show.stack_map import OCCURRED, StackMap
from matrix.show.words import WORST_FIRST, render_chain

LINES = 40  # of an example's log: a crash with its native stack


@dataclass(frozen=True)
class FailureHistory:
    """The nights of a failure: the first and last in which it occurred ("" for none), and the cases that changed."""

    nights: int
    first: str
    last: str
    flakes: Flakes
    cases: int
    changed: Sequence[tuple[Record, Sequence[PastResult]]]


def failure_page(
    failure: Failure,
    map: StackMap,
    night: Night,
    levels: Mapping[str, frozenset[Level]],
    pasts: Pasts | None = None,
    *,
    site: bool = False,
) -> str:
    """Return the page.

    `map` has the catalog, `night` is the whole run. `levels`: the levels at which each failure has ever run on this
    machine; `pasts`: the results of each case in earlier nights. With `site` the page is one of a site, without history
    and links to single cases.
    """
    records = [record for record in night.records if record.failure == failure.id]
    about = summary(failure)
    anchors = anchors_of(night.records)
    links = {key: "" if site else f"../index.html#{anchor}" for key, anchor in anchors.items()}
    return document(
        "failure.html.j2",
        failure=failure,
        run=night.run,
        summary=about,
        fixed_in=known.fixes(about),
        topic=next((topic.title for topic in map.catalog.topics if topic.id == failure.topic), ""),
        references={text: _thread(text) for text in failure.references},
        stand_ins=[f"{', '.join(stand_in.packages)}: {stand_in.reason}" for stand_in in failure.stand_in],
        masked=[f"{mask.by}: {mask.reason}" for mask in failure.masked],
        counts=_counts(records),
        affected=map.affected.get(failure.id, ()),
        rules={ruling: _counts(members) for ruling, members in _by_rule(failure, map.catalog, records).items()},
        grids=grids(records, links, levels),
        chart=chart(failure, records),
        example=_example(failure),
        site=site,
        versions=[known.affected_versions(map.catalog, rule) for rule in failure.affected if not rule.cases],
        evidence=evidence_of(night_of(failure)),
        history=_history(records, pasts or {}),
        signatures={signature.name: _conditions(signature) for signature in failure.signature},
    )


def _conditions(signature: Signature) -> dict[str, Any]:
    return {name: value for name, value in vars(signature).items() if name != "name" and value is not None}


def _thread(text: str) -> str:
    """Return the URL of the thread OWNER/NAME#NUMBER, "" for anything else."""
    thread = re.fullmatch(r"([\w.-]+/[\w.-]+)#(\d+)", text)
    return f"https://github.com/{thread[1]}/issues/{thread[2]}" if thread else ""


def chart(failure: Failure, records: Iterable[Record]) -> Markup:
    """Return the HTML of a failure's chart, "" without chart.py or if the chart is empty.

    picture() receives (case, value) for each rank. Values come from journals and are untrusted: picture() has to skip
    values that it can't read and to escape those that it shows (matrix.kit.svg).
    """
    if not (failure.folder / "chart.py").is_file():
        return Markup()
    values = [
        (f"{record.case}, mcore {record.cell.stack[MCORE]} on {record.cell.base}", rank.value)
        for record in records
        for rank in record.outcome.ranks
    ]
    return Markup(load_module(failure.folder, "chart").picture(values))  # noqa: S704


def _example(failure: Failure) -> str:
    """Return the exceptions, or the end of the log, of the first example of the failure; "" where none can be read."""
    for path in sorted((failure.folder / "examples" / SHOWS).glob("*.json")):
        try:
            outcome = scrubbed(read(path))
        except (OSError, UnicodeDecodeError, MalformedError):  # `catalog check` reports it
            continue
        return render_chain(outcome.chain) if outcome.chain else tail(outcome.evidence or outcome.reason, LINES)
    return ""


def _counts(records: Sequence[Record]) -> dict[tuple[Verdict, Level], int]:
    """Return how many records have each verdict at each level, most urgent first."""
    counts = Counter((record.verdict, record.level) for record in records)
    return {pair: counts[pair] for verdict in WORST_FIRST for level in Level if (pair := (verdict, level)) in counts}


def _by_rule(failure: Failure, catalog: Catalog, records: Sequence[Record]) -> dict[Grounds, list[Record]]:
    """Return the records under each rule of the failure, and under other rulings that they are based on."""
    under: dict[Grounds, list[Record]] = {
        grounds.of_rule(kind, rule): []
        for kind, rules in ((Expectation.BROKEN, failure.affected), (Expectation.WORKS, failure.works))
        for rule in rules
    }
    for record in records:
        under.setdefault(grounds.of_record(catalog, failure, record), []).append(record)
    return under


def _history(records: Sequence[Record], pasts: Pasts) -> FailureHistory | None:
    """Return the history of the failure, None for fewer than two nights."""
    histories = [(record, pasts.get(record.key, ())) for record in records]
    results = [result for _, history in histories for result in history]
    nights = {result.number: result.run for result in results}
    if len(nights) < 2:
        return None
    occurred = [result.number for result in results if result.ran and result.verdict in OCCURRED] or [-1]
    flaked = [flakes(history) for _, history in histories]
    return FailureHistory(
        nights=len(nights),
        first=nights.get(min(occurred), ""),
        last=nights.get(max(occurred), ""),
        flakes=Flakes(sum(flake.flipped for flake in flaked), sum(flake.again for flake in flaked)),
        cases=len(histories),
        changed=[(record, history) for record, history in histories if turns(history)],
    )
