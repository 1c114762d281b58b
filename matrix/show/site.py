"""The static site: question, map, failures and their data, with the results of a night and nothing private of it."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from matrix.ask.check.table import CHOSEN
from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.model import Catalog
from matrix.ground.catalog.stack import MCORE
from matrix.ground.verdicts.outcome import Outcome
from matrix.ground.verdicts.planned import Planned
from matrix.ground.verdicts.record import SILENT, Record
from matrix.prove.authoring.overview import failure_to_json
from matrix.prove.store.paths import write_whole
from matrix.prove.store.stored_run import Night
from matrix.show.document import document
from matrix.show.escaping import json_text
from matrix.show.failure_page import failure_page
from matrix.show.known import size
from matrix.show.stack_map import MEANS, SIGNS, Colour, MapCall, StackMap, known
from matrix.show.terminal import json_object
from matrix.show.words import verdict_counts


def published(catalog: Catalog, records: Sequence[Record]) -> list[Record]:
    """Return the verdicts on the catalog's failures, bases and releases, without what names a machine or a log."""
    cores = {None, *(release.version for release in catalog.megatron_core), *catalog.stated(MCORE)}
    failures = {failure.id for failure in catalog.failures}
    return [
        Record(
            Planned(record.cell, record.failure, record.case, record.level, record.expectation),
            verdict=record.verdict,
            outcome=Outcome(record.outcome.kind),
            signature=record.signature,
            run=record.run,
            cached_from=record.cached_from,
        )
        for record in records
        if record.failure in failures and record.cell.base in catalog.bases
        if record.cell.stack.version(MCORE) in cores and record.verdict not in SILENT
    ]


def write_site(folder: Path, map: StackMap, night: Night) -> None:
    """Write the site of a map: of the night the counts of all verdicts, and the records that may be published.

    Raises MatrixError where a file can't be written.
    """
    failures = map.catalog.failures
    shown = replace(night, records=tuple(published(map.catalog, night.records)))
    levels: dict[str, frozenset[Level]] = {}
    for record in shown.records:
        levels[record.failure] = levels.get(record.failure, frozenset()) | {record.level}
    files = {
        "index.html": upgrade_page(map, night),
        "all.html": document("all.html.j2", map=map),
        "catalog.json": json_object("catalog/1", (failure_to_json(failure) for failure in failures)),
        "map.json": json_object("map/1", map_items(map)),
        **{f"failures/{failure.id}.html": failure_page(failure, map, shown, levels, site=True) for failure in failures},
    }
    for name, content in files.items():
        write_whole(folder / name, content if content.endswith("\n") else content + "\n", durable=False)


def upgrade_page(map: StackMap, night: Night | None = None) -> str:
    """Return the page of the question. With a night it is the first of a site, with links to its other pages."""
    records = night.records if night else ()
    packed = zlib.compress(json_text(map.to_json()).encode(), 9)
    return document(
        "upgrade.html.j2",
        axes=CHOSEN,
        map=map,
        means=MEANS,
        signs=SIGNS,
        night=night,
        site=night is not None,
        size=size(map.catalog),
        counts=verdict_counts(records),
        hidden=sum(record.verdict not in SILENT for record in records) - len(published(map.catalog, records)),
        packed=base64.b64encode(packed).decode(),
    )


def map_items(map: StackMap) -> list[dict[str, Any]]:
    """Return where each failure and call is known: by container, the megatron-core releases and how it stands there."""
    items = [
        {
            "container": container,
            **({"failure": "", "call": vars(subject)} if isinstance(subject, MapCall) else {"failure": subject}),
            "standing": standing.value,
            "mcore": releases,
        }
        for (container, subject, standing), releases in known(
            map.table, [row.name for row in map.images], map.columns
        ).items()
    ]
    return sorted(items, key=lambda item: "call" in item)


def picture(map: StackMap, scheme: str) -> str:
    """Return the map of the containers shown first as SVG, for a "light" or "dark" page."""
    rows = next(iter(map.groups.values()), ())
    places = {
        colour: [(x, y) for y, row in enumerate(rows) for x, cell in enumerate(row.cells) if cell.colour is colour]
        for colour in Colour
    }
    return document("map.svg.j2", map=map, rows=rows, places=places, means=MEANS, scheme=scheme)
