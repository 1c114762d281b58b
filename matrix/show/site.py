"""Writes the reports of a run, and the static site: map, failures and data, with nothing private of a night."""

from __future__ import annotations

import base64
import os
import zlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from matrix.ask.check.table import CHOSEN, build_table
from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.model import Catalog
from matrix.ground.catalog.stack import MCORE
from matrix.ground.verdicts.outcome import Outcome
from matrix.ground.verdicts.planned import Planned
from matrix.ground.verdicts.record import SILENT, Record
from matrix.prove.authoring.overview import failure_to_json
from matrix.prove.store import stored_run
from matrix.prove.store.history import History
from matrix.prove.store.paths import Paths, write_whole
from matrix.prove.store.stored_run import Night, StoredRun
from matrix.show.document import document
from matrix.show.failure_page import cell_page, failure_page
from matrix.show.findings import night_junit
from matrix.show.known import release_pages, size
from matrix.show.page import page
from matrix.show.run_summary import changes, job_summary
from matrix.show.stack_map import MEANS, SIGNS, MapCall, StackMap, known, stack_map
from matrix.show.terminal import json_object, json_text
from matrix.show.words import group_by, verdict_counts


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
    releases = release_pages()
    files = {
        "index.html": upgrade_page(map, night),
        "all.html": document("all.html.j2", map=map, releases=releases),
        **{f"releases/{name}.html": page for name, page in releases.items()},
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


def render(run: StoredRun, out: Path, history: History, catalog: Catalog) -> Night:
    """Add a run to the history and write its reports: a night's under `out`, any other run's in a folder of their own.

    Returns the night.

    May be called repeatedly, also for an interrupted or an older run. Raises MatrixError if the run, the history or
    the output folder can't be used.
    """
    current, paths = stored_run.added(run, history), Paths(out).pages(run.folder.name)
    levels, pasts = history.levels(), history.pasts(current.run)
    different = changes(current.records, history.previous(current.run))
    bisections = sorted(path.stem for path in paths.bisections.glob("*.html"))
    map = stack_map(catalog, build_table(catalog), current.records, pasts)
    write_whole(paths.page, page(current, different, levels, map, bisections, pasts))
    write_whole(paths.upgrade, upgrade_page(map), durable=False)
    for failure in catalog.failures:
        write_whole(paths.failure(failure.id), failure_page(failure, map, current, levels, pasts), durable=False)
    for cell, records in group_by(lambda record: record.cell.id, current.records).items():
        path = paths.cell(cell)
        log_of = partial(_log, path.parent, run.folder)
        write_whole(path, cell_page(current.run, records, catalog, pasts, log_of), durable=False)
    write_whole(paths.junit, night_junit(current))
    write_whole(paths.summary, job_summary(current, different))
    return current


def _log(page_folder: Path, run_folder: Path, log: str) -> tuple[str, str]:
    """Return the name of a rank's log and the link to it from a page; in the run's folder the name is relative."""
    if not (path := Path(log)).is_file():
        return log, ""
    path, run = path.resolve(), run_folder.resolve()
    name = str(path.relative_to(run)) if path.is_relative_to(run) else log
    return name, quote(os.path.relpath(path, page_folder.resolve()))
