"""The static site: catalog, upgrade map, failures and badges, with the results of a night and nothing private of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from matrix.authoring.export import failure_to_json
from matrix.catalog.failure import Level
from matrix.catalog.model import Catalog
from matrix.catalog.versions import spans
from matrix.report.document import document
from matrix.report.failure_page import failure_page
from matrix.report.json_object import json_object
from matrix.report.stack_map import MEANS, Colour, MapRow, StackMap, known_breaks, known_calls
from matrix.report.upgrade_page import upgrade_page
from matrix.store.night import Night
from matrix.store.paths import write_whole
from matrix.verdicts.outcome import Outcome
from matrix.verdicts.record import SILENT, Record


def published(catalog: Catalog, records: Sequence[Record]) -> list[Record]:
    """Return the verdicts in cells of the catalog's bases and releases, without what names a machine or a log."""
    cores = {"none", *(one.version for one in catalog.megatron_core)}
    return [
        Record(
            failure=one.failure,
            case=one.case,
            cell=one.cell,
            level=one.level,
            expectation=one.expectation,
            verdict=one.verdict,
            outcome=Outcome(one.outcome.kind),
            signature=one.signature,
            reproduce="",
            run=one.run,
            cached_from=one.cached_from,
        )
        for one in records
        if one.cell.base in catalog.bases and one.cell.mcore in cores and one.verdict not in SILENT
    ]


def write_site(folder: Path, map: StackMap, night: Night) -> None:
    """Write the site of a map; `night` has published records only. Raises MatrixError where a file can't be written."""
    levels: dict[str, frozenset[Level]] = {}
    for one in night.records:
        levels[one.failure] = levels.get(one.failure, frozenset()) | {one.level}
    files = {
        "index.html": upgrade_page(map, night),
        "catalog.json": json_object("catalog/1", (failure_to_json(one) for one in map.catalog.failures)),
        "map.json": json_object("map/1", map_items(map)),
        **{f"badges/{name}.svg": badge(*texts) for name, texts in badges(map)},
        **{f"failures/{one.id}.html": failure_page(one, map, night, levels) for one in map.catalog.failures},
    }
    for name, text in files.items():
        write_whole(folder / name, text if text.endswith("\n") else text + "\n", durable=False)


def map_items(map: StackMap) -> list[dict[str, Any]]:
    """Return where each failure and call is known: by container, the megatron-core releases and how it stands there."""
    names = [row.name for row in images(map)]
    failures = [
        {"container": container, "failure": failure, "standing": standing.value, "mcore": releases}
        for (container, failure, standing), releases in known_breaks(map.table, names, map.columns).items()
    ]
    calls = [
        {"container": container, "failure": "", "call": vars(call), "standing": standing.value, "mcore": releases}
        for (container, call, standing), releases in known_calls(map.table, names, map.columns).items()
    ]
    return [*failures, *calls]


def images(map: StackMap) -> list[MapRow]:
    """Return the rows of containers."""
    return [row for group in map.groups for row in group.rows if row.choice.get("base", "").startswith("base=")]


def badges(map: StackMap) -> Iterator[tuple[str, tuple[str, str, str]]]:
    """Yield the name, label, text and colour of each badge: of the catalog, each container, each release."""
    yield "catalog", ("megatrix", f"{len(map.catalog.failures)} known failures", "#1f5fb8")
    rows = images(map)
    broken = {(row.name, mcore) for row in rows for mcore, cell in zip(map.columns, row.cells, strict=True)
              if cell.colour is Colour.WILL}  # fmt: skip
    for row in rows:
        some = [mcore for mcore in map.columns if (row.name, mcore) in broken]
        yield row.name, _verdict(row.name, f"megatron-core {spans(some, map.columns)}" if some else "")
    for mcore in map.columns:
        count = sum((row.name, mcore) in broken for row in rows)
        yield (
            f"mcore-{mcore}",
            _verdict(f"megatron-core {mcore}", f"{count} of {len(rows)} containers" if count else ""),
        )


def _verdict(label: str, broken: str) -> tuple[str, str, str]:
    return (label, f"breaks: {broken}", "#b3261e") if broken else (label, "no certain break known", "#0a7a55")


def badge(label: str, text: str, colour: str) -> str:
    """Return a badge as SVG."""
    return document("badge.svg.j2", label=label, text=text, colour=colour)


def picture(map: StackMap, scheme: str) -> str:
    """Return the map of the containers shown first as SVG, for a "light" or "dark" page."""
    rows = [row for group in map.groups if group.first for row in group.rows]
    places: Mapping[Colour, list[tuple[int, int]]] = {
        colour: [(x, y) for y, row in enumerate(rows) for x, cell in enumerate(row.cells) if cell.colour is colour]
        for colour in Colour
    }
    return document("map.svg.j2", map=map, rows=rows, places=places, means=MEANS, scheme=scheme)
