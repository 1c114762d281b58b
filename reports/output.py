"""From a run's folder to everything a person or a machine reads of it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from matrix.failure import Failure
from reports import night
from reports.changes import changes
from reports.failure_page import failure_page
from reports.files import Paths, write_whole
from reports.history import History
from reports.junit import junit
from reports.markdown import job_summary
from reports.night import Night
from reports.page import page


def render(run_folder: Path, out: Path, history: History, failures: Iterable[Failure]) -> Night:
    """Add a run to the history; write everything that is read of it under `out`. Returns the night.

    May be called as often as one likes, also for a run that was cut off and for an older run. Raises MatrixError when
    the run, the history or the output folder can't be used.
    """
    told, paths = night.read(run_folder), Paths(out)
    history.add(told.run, told.records)
    levels = history.levels()
    different = changes(told.records, history.previous(told.run))
    write_whole(paths.page, page(told, different, levels))
    for failure in failures:
        write_whole(paths.failure(failure.id), failure_page(failure, told, levels))
    write_whole(paths.junit, junit(told))
    write_whole(paths.summary, job_summary(told, different))
    return told
