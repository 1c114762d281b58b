"""What a person sees while a run goes on: a line for each case as it ends and, on a terminal, what runs now."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Mapping

from matrix.report.summary import Progress, colour_wanted
from matrix.verdicts.record import Record

ERASE = "\r\x1b[K"  # to the start of the line, and empty it


class Screen:
    """Shows a run of `total` cases on stdout and its warnings on stderr."""

    def __init__(self, total: int, environ: Mapping[str, str]) -> None:
        live = sys.stdout.isatty()
        self.width = shutil.get_terminal_size().columns
        self._erase = ERASE if live else ""
        colour = colour_wanted(sys.stdout, environ)
        self._progress = Progress(total, width=self.width, colour=colour, clock=time.monotonic if live else None)

    def show(self, record: Record) -> None:
        """Tell of a case that ended."""
        print(self._erase + self._progress.line(record), flush=True)
        self._tell_now()

    def begin(self, key: str) -> None:
        """Tell of a case that begins."""
        self._progress.begin(key)
        self._tell_now()

    def warn(self, text: str) -> None:
        """Tell what a person should know."""
        print(f"{self._erase}megatrix: {text}", file=sys.stderr)

    def _tell_now(self) -> None:
        if self._erase:
            print(self._erase + self._progress.now(), end="", flush=True)
