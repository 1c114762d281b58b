"""The static site: catalog, upgrade map, failures and badges, with the results of a night and nothing private of it."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from matrix.authoring.export import failure_to_json
from matrix.catalog.distributions import read_distributions
from matrix.catalog.failure import Level
from matrix.catalog.model import Catalog
from matrix.catalog.stack import MCORE
from matrix.catalog.versions import spans
from matrix.check.table import CHOSEN
from matrix.report.document import document
from matrix.report.escaping import json_text
from matrix.report.failure_page import failure_page
from matrix.report.json_object import json_object
from matrix.report.known import size
from matrix.report.site_pages import FailurePage, SitePage, StackPage, pages
from matrix.report.stack_map import MEANS, SIGNS, UNKNOWN, Colour, MapCall, StackMap, known
from matrix.report.words import verdict_counts
from matrix.store.paths import write_whole
from matrix.store.stored_run import Night
from matrix.verdicts.outcome import Outcome
from matrix.verdicts.planned import Planned
from matrix.verdicts.record import SILENT, Record

FEED: Final = 60  # entries of the feed: about a year of releases and failures


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


def write_site(folder: Path, map: StackMap, night: Night, url: str = "") -> None:
    """Write the site of a map: of the night the counts of all verdicts, and the records that may be published.

    `url` is where it is published, "" if not known. Raises MatrixError where a file can't be written.
    """
    url = url and url.rstrip("/") + "/"
    failures, listed = map.catalog.failures, list(pages(map, read_distributions()))
    groups, shown = _by_group(listed), replace(night, records=tuple(published(map.catalog, night.records)))
    index = SitePage("index", "", "Each failure, container and release", "Every page of the site.")
    levels: dict[str, frozenset[Level]] = {}
    for record in shown.records:
        levels[record.failure] = levels.get(record.failure, frozenset()) | {record.level}

    def text(page: SitePage) -> str:
        if isinstance(page, FailurePage):
            return failure_page(page.failure, map, shown, levels, site=page, url=url)
        template = "stack.html.j2" if isinstance(page, StackPage) else "component.html.j2"
        return document(template, page=page, means=MEANS, url=url)

    files = {
        "index.html": upgrade_page(map, night, url=url),
        index.path: document("all.html.j2", groups=groups, url=url),
        index.json: json_object("site/1", (page.to_json() for page in listed), **index.to_json()),
        "feed.xml": document("feed.xml.j2", entries=_newest(listed), url=url),
        "llms.txt": document("llms.txt.j2", size=size(map.catalog), groups=groups, url=url),
        **({"sitemap.xml": document("sitemap.xml.j2", pages=listed, url=url)} if url else {}),
        "catalog.json": json_object("catalog/1", (failure_to_json(failure) for failure in failures)),
        "map.json": json_object("map/1", map_items(map)),
        **{f"badges/{name}.svg": badge(*texts) for name, texts in badges(map)},
        **{page.path: text(page) for page in listed},
        **{page.json: json_object("site/1", page.items(), **page.to_json()) for page in listed},
    }
    for name, content in files.items():
        write_whole(folder / name, content if content.endswith("\n") else content + "\n", durable=False)


def _by_group(pages: Sequence[SitePage]) -> dict[str, list[SitePage]]:
    """Return the pages by the title of their group; those of stacks are linked from their containers."""
    groups: dict[str, list[SitePage]] = {}
    for page in pages:
        if not isinstance(page, StackPage):
            groups.setdefault(page.group, []).append(page)
    return groups


def _newest(pages: Sequence[SitePage]) -> list[dict[str, str]]:
    """Return the entries of the feed: what has a date, the newest first."""
    dated = sorted((page for page in pages if page.updated), key=lambda page: (page.updated, page.path), reverse=True)
    return [
        {
            "path": page.path,
            "title": page.title,
            "sentence": page.sentence,
            "updated": f"{page.updated if page.updated.count('-') == 2 else page.updated + '-01'}T00:00:00Z",
        }
        for page in dated[:FEED]
    ]


def upgrade_page(map: StackMap, night: Night | None = None, *, url: str = "") -> str:
    """Return the page of the question. With a night it is the first of a site, with links to its other pages."""
    records = night.records if night else ()
    ran = sum(record.verdict not in SILENT for record in records)
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
        hidden=ran - len(published(map.catalog, records)),
        packed=base64.b64encode(packed).decode(),
        url=url,
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


def badges(map: StackMap) -> Iterator[tuple[str, tuple[str, str, str]]]:
    """Yield the name, label, text and colour of each badge: of the catalog, each container, each release."""
    yield "catalog", ("megatrix", size(map.catalog), "#1f5fb8")
    broken = {
        row.name: [mcore for mcore, cell in zip(map.columns, row.cells, strict=True) if cell.colour is Colour.BREAKS]
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
