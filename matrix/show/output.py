"""Writes all reports of a run: pages, JUnit XML, Markdown."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from urllib.parse import quote

from matrix.ask.check.table import build_table
from matrix.ground.catalog.model import Catalog
from matrix.prove.store import stored_run
from matrix.prove.store.history import History
from matrix.prove.store.paths import Paths, write_whole
from matrix.prove.store.stored_run import Night, StoredRun
from matrix.show.cell_page import cell_page
from matrix.show.changes import changes
from matrix.show.failure_page import failure_page
from matrix.show.findings import night_junit
from matrix.show.page import page
from matrix.show.run_summary import job_summary
from matrix.show.site import upgrade_page
from matrix.show.stack_map import stack_map
from matrix.show.words import group_by


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
