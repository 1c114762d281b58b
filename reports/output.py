"""From a run's folder to everything a person or a machine reads of it."""

from __future__ import annotations

from pathlib import Path

from reports import night
from reports.changes import changes
from reports.files import Paths, write_whole
from reports.history import History
from reports.junit import junit
from reports.night import Night
from reports.page import page


def render(run_folder: Path, out: Path, history: History) -> Night:
    """Add a run to the history and write its page and JUnit XML under `out`. Returns the night, for the summary.

    May be called as often as one likes, also for a run that was cut off and for an older run. Raises MatrixError when
    the run, the history or the output folder can't be used.
    """
    told, paths = night.read(run_folder), Paths(out)
    history.add(told.run, told.records)
    write_whole(paths.page, page(told, changes(told.records, history.previous(told.run)), history.levels()))
    write_whole(paths.junit, junit(told))
    return told
