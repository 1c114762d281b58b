"""Terminal output during a run: a line for each case that ends and, on a terminal, progress and the running cases."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from matrix.ground.verdicts.record import SILENT, Record
from matrix.ground.verdicts.text import one_line, visible
from matrix.show.run_summary import styled, without_result
from matrix.show.terminal import Part, console, show, table, text
from matrix.show.words import is_red, label, verdict_reason

if TYPE_CHECKING:
    from rich.progress import Progress

STATED_S: Final = 60.0  # s between statements of the remaining time, where no progress is shown


class Screen:
    """Shows a run of `total` cases on stdout."""

    def __init__(self, total: int, now: Callable[[], float] = time.monotonic) -> None:
        self._total, self._done, self._ran = total, 0, 0
        self._now = now
        self._began = self._stated = now()
        self._running: dict[str, None] = {}
        self._progress: Progress | None = None

    @contextmanager
    def animated(self) -> Iterator[None]:
        """Show progress and the running cases below the output, where stdout is a terminal that can."""
        target = console(sys.stdout, os.environ)
        if not (target and target.is_interactive):
            yield
            return
        from rich.console import RenderableType
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.text import Text

        running = self._running

        class Live(Progress):
            def get_renderables(self) -> Iterator[RenderableType]:
                """Yield the bar, then the running cases."""
                yield self.make_tasks_table(self.tasks)
                yield from (Text(visible(f"now: {key}"), overflow="fold") for key in tuple(running))

        columns = (BarColumn(), TextColumn("{task.description}", markup=False), TimeRemainingColumn(compact=True))
        with Live(
            *columns,
            console=target,
            refresh_per_second=2,
            speed_estimate_period=3600,  # seconds; a case may take minutes
            redirect_stderr=sys.stderr.isatty(),
            transient=True,
        ) as self._progress:
            self._progress.add_task(f"0/{self._total}", total=self._total)
            yield
        self._progress = None

    def show(self, record: Record) -> None:
        """Print the line of a case that ended."""
        line = self.line(record)
        # The remaining time is that of cases that run: others take no time.
        runs = record.verdict not in SILENT and not record.cached_from
        self._ran += runs
        if self._progress:
            (task,) = self._progress.tasks
            total = (task.total or 0) - (not runs)
            self._progress.update(task.id, description=f"{self._done}/{self._total}", total=total, advance=int(runs))
        show(line)
        if not self._progress and runs and self._now() - self._stated >= STATED_S:  # a log of a CI service
            self._stated = self._now()
            seconds = (self._total - self._done) * (self._stated - self._began) / self._ran
            show(f"{self._done} of {self._total} cases ended, about {seconds / 60:.0f} minutes left")

    def open(self, records: Sequence[Record], *lines: Part) -> None:
        """Count cases as done that can't run; print a line for each reason, then these."""
        self._done += len(records)
        if self._progress:
            (task,) = self._progress.tasks
            self._progress.update(task.id, total=(task.total or 0) - len(records))
        show(*without_result(records), *lines)

    def begin(self, key: str) -> None:
        """Add a running case."""
        self._running[key] = None

    def line(self, record: Record) -> Part:
        """Count the case as done; return what it is and how it ended, and the reason of a red one below.

        [ 3/24] dud-assertion tp2 cpu torch-2.4.0/mcore-0.8.0 reproduced 1.1 s
        """
        self._done += 1
        self._running.pop(record.key, None)
        count = f"[{self._done:>{len(str(self._total))}}/{self._total}]"
        duration = f"from {one_line(record.cached_from)}" if record.cached_from else f"{record.outcome.seconds:.1f} s"
        case = f"{record.failure} {record.case} {record.level.value} {label(record.cell)}"
        ended = text(f"{case} ", styled(record.verdict), f" {duration}")
        return table([(count, ended), *([("", verdict_reason(record))] if is_red(record) else [])])
