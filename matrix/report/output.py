"""From a run's folder to everything a person or a machine reads of it."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from urllib.parse import quote

from matrix.catalog.model import Catalog
from matrix.report.cell_page import by_cell, cell_page, name_of
from matrix.report.changes import changes
from matrix.report.compat_page import compat_page
from matrix.report.failure_page import failure_page
from matrix.report.junit import junit
from matrix.report.markdown import job_summary
from matrix.report.page import page
from matrix.store import night
from matrix.store.history import History
from matrix.store.night import Night
from matrix.store.paths import Paths, write_whole


def render(run_folder: Path, out: Path, history: History, catalog: Catalog) -> Night:
    """Add a run to the history; write everything that is read of it under `out`. Returns the night.

    May be called as often as one likes, also for a run that was cut off and for an older run. Raises MatrixError when
    the run, the history or the output folder can't be used.
    """
    told, paths = night.read(run_folder), Paths(out)
    history.add(told.run, told.records)
    levels, pasts = history.levels(), history.pasts(told.run)
    different = changes(told.records, history.previous(told.run))
    write_whole(paths.page, page(told, different, levels, sorted(one.stem for one in paths.bisections.glob("*.html"))))
    write_whole(paths.compat, compat_page(catalog, levels), durable=False)
    for failure in catalog.failures:
        write_whole(paths.failure(failure.id), failure_page(failure, catalog, told, levels, pasts), durable=False)
    for cell, records in by_cell(told.records).items():
        path = paths.cell(name_of(cell))
        link_of = partial(_link, path.parent)
        write_whole(path, cell_page(told.run, records, catalog, pasts, link_of), durable=False)
    write_whole(paths.junit, junit(told))
    write_whole(paths.summary, job_summary(told, different))
    return told


def _link(here: Path, log: str) -> str:
    """Return the way from a page to a log, "" when there is none: a run of another machine, a log that is gone."""
    path = Path(log)
    return quote(os.path.relpath(path.resolve(), here.resolve())) if path.is_file() else ""
