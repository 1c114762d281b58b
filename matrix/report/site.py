"""The static site: catalog, upgrade map, failures and badges, with the results of a night and nothing private of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from matrix.authoring.export import failure_to_json
from matrix.catalog.failure import Level
from matrix.catalog.model import Catalog
from matrix.catalog.stack import MCORE, component_title
from matrix.catalog.versions import spans
from matrix.check.table import CHOSEN
from matrix.report.document import document
from matrix.report.failure_page import failure_page
from matrix.report.json_object import json_object
from matrix.report.stack_map import MEANS, UNKNOWN, Colour, MapCall, StackMap, known
from matrix.store.paths import write_whole
from matrix.store.stored_run import Night
from matrix.verdicts.outcome import Outcome
from matrix.verdicts.planned import Planned
from matrix.verdicts.record import SILENT, Record

# The fields of a stack on the page that compares two, and their labels.
FIELDS: Final = {axis: "container, or torch" if axis == "base" else component_title(CHOSEN[axis][0]) for axis in CHOSEN}


def published(catalog: Catalog, records: Sequence[Record]) -> list[Record]:
    """Return the verdicts on the catalog's failures, bases and releases, without what names a machine or a log."""
    cores = {"none", *(release.version for release in catalog.megatron_core)}
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
        if record.cell.stack[MCORE] in cores and record.verdict not in SILENT
    ]


def write_site(folder: Path, map: StackMap, night: Night) -> None:
    """Write the site of a map; `night` has published records only. Raises MatrixError where a file can't be written."""
    levels: dict[str, frozenset[Level]] = {}
    for record in night.records:
        levels[record.failure] = levels.get(record.failure, frozenset()) | {record.level}
    failures = map.catalog.failures
    files = {
        "index.html": upgrade_page(map, night),
        "catalog.json": json_object("catalog/1", (failure_to_json(failure) for failure in failures)),
        "map.json": json_object("map/1", map_items(map)),
        **{f"badges/{name}.svg": badge(*texts) for name, texts in badges(map)},
        **{f"failures/{failure.id}.html": failure_page(failure, map, night, levels) for failure in failures},
    }
    for name, text in files.items():
        write_whole(folder / name, text if text.endswith("\n") else text + "\n", durable=False)


def upgrade_page(map: StackMap, night: Night | None = None) -> str:
    """Return the page that compares two stacks. With a night it is the first of a site: failures and data, too."""
    counts = Counter(record.verdict for record in night.records) if night else {}
    return document("upgrade.html.j2", axes=FIELDS, map=map, means=MEANS, night=night, counts=counts)


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


def badges(map: StackMap) -> Iterator[tuple[str, tuple[str, str, str]]]:
    """Yield the name, label, text and colour of each badge: of the catalog, each container, each release."""
    yield "catalog", ("megatrix", f"{len(map.catalog.failures)} known failures", "#1f5fb8")
    broken = {
        row.name: [mcore for mcore, cell in zip(map.columns, row.cells, strict=True) if cell.colour is Colour.WILL]
        for row in map.images
    }
    for row in map.images:
        text = f"megatron-core {spans(broken[row.name], map.columns)}" if broken[row.name] else ""
        grey = (row.name, UNKNOWN, "#5f6a75")
        yield row.name, grey if row.unknown and not text else _verdict(row.name, text)
    for mcore in map.columns:
        count = sum(mcore in releases for releases in broken.values())
        text = f"{count} of {len(broken)} containers" if count else ""
        yield f"mcore-{mcore}", _verdict(f"megatron-core {mcore}", text)


def _verdict(label: str, broken: str) -> tuple[str, str, str]:
    return (label, f"breaks: {broken}", "#b3261e") if broken else (label, "no certain break known", "#0a7a55")


def badge(label: str, text: str, colour: str) -> str:
    """Return a badge as SVG."""
    return document("badge.svg.j2", label=label, text=text, colour=colour)


def picture(map: StackMap, scheme: str) -> str:
    """Return the map of the containers shown first as SVG, for a "light" or "dark" page."""
    rows = next(iter(map.groups.values()), ())
    places = {
        colour: [(x, y) for y, row in enumerate(rows) for x, cell in enumerate(row.cells) if cell.colour is colour]
        for colour in Colour
    }
    return document("map.svg.j2", map=map, rows=rows, places=places, means=MEANS, scheme=scheme)
