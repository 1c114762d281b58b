"""Terminal output during a run: a line for each case that ends and, on a terminal, the running cases."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Mapping

from matrix.report.summary import Progress, colour_wanted
from matrix.verdicts.record import Record

ERASE = "\r\x1b[K"  # return to the start of the line and clear it


class Screen:
    """Shows a run of `total` cases on stdout and its warnings on stderr."""

    def __init__(self, total: int, environ: Mapping[str, str]) -> None:
        live = sys.stdout.isatty()
        self.width = shutil.get_terminal_size().columns
        self._erase = ERASE if live else ""
        colour = colour_wanted(sys.stdout, environ)
        self._progress = Progress(total, width=self.width, colour=colour, clock=time.monotonic if live else None)

    def show(self, record: Record) -> None:
        """Print the line of a case that ended."""
        print(self._erase + self._progress.line(record), flush=True)
        self._show_running()

    def begin(self, key: str) -> None:
        """Add a case to the line of running cases."""
        self._progress.begin(key)
        self._show_running()

    def warn(self, text: str) -> None:
        """Print a warning to stderr."""
        print(f"{self._erase}megatrix: {text}", file=sys.stderr)

    def _show_running(self) -> None:
        if self._erase:
            print(self._erase + self._progress.now(), end="", flush=True)
