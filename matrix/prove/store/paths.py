"""Paths of the output folder, and atomic writing of its files."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

from matrix.ground.errors import MatrixError

# Output folder of runs, relative to the current folder (a checkout's root). Every entry point has an option for it.
OUT = Path("reports") / "out"
STAMP: Final = "%Y%m%dT%H%M%S%f"  # start of a run's id: its time in UTC, to the microsecond
NIGHT: Final = "night"  # the label of a run without a selection
BISECTION: Final = "bisect"  # that of the runs of a bisection
PLAN: Final = "plan.json"  # in the folder of a run
READABLE: Final = "make the folder readable, or choose another one with --out"
DESK: Final = "desk"  # the folder of the pages of every other run


def is_night(run: str) -> bool:
    """Return whether the run of this id is a night."""
    return run.endswith(f"-{NIGHT}")


@dataclass(frozen=True)
class Paths:
    """The names under one output folder."""

    out: Path = OUT

    def run(self, run: str) -> Path:
        """Return the folder of one run: plan.json, journal-*.jsonl, logs/."""
        return self.out / "runs" / run

    def runs(self) -> list[str]:
        """Return the ids of the runs that have a plan, oldest first. Raises MatrixError for an unreadable folder."""
        try:
            return sorted(path.name for path in self.run("").iterdir() if os.access(path / PLAN, os.F_OK))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise MatrixError("can't be read", where=str(self.run("")), got=error.strerror, fix=READABLE) from error

    def new_run(self, label: str) -> Path:
        """Create and return the folder of a run."""
        folder = self.next_run(label)
        make_folder(folder)
        return folder

    def next_run(self, label: str) -> Path:
        """Return the folder of a new run. Its id sorts after all others, also when the clock was set back."""
        stamps = [run.partition("Z-")[0] for run in self.runs()]
        newest = max((stamp for stamp in stamps if re.fullmatch(r"\d{8}T\d{12}", stamp)), default="")
        stamp = f"{datetime.now(timezone.utc):{STAMP}}"
        if stamp <= newest:
            digits = f"{int(newest.replace('T', '')) + 1}"
            stamp = f"{digits[:8]}T{digits[8:]}"
        return self.run(f"{stamp}Z-{label}")

    def pages(self, run: str) -> Paths:
        """Return the paths of a run's pages: of a night here, of any other run in a folder that a night never uses."""
        return self if is_night(run) else Paths(self.out / DESK)

    @property
    def history(self) -> Path:
        """The SQLite history of all runs."""
        return self.out / "history.sqlite"

    @property
    def page(self) -> Path:
        """The main page of the report."""
        return self.out / "index.html"

    def failure(self, id: str) -> Path:
        """Return the page of one failure."""
        return self.out / "failures" / f"{id}.html"

    @property
    def upgrade(self) -> Path:
        """The comparison of two stacks, with the upgrade map."""
        return self.out / "upgrade.html"

    def cell(self, cell: str) -> Path:
        """Return the page of one cell, by the cell's id."""
        return self.out / "cells" / page_name(cell)

    @property
    def bisections(self) -> Path:
        """The folder of the bisections, each with its probe results and a page."""
        return self.out / "bisections"

    @property
    def junit(self) -> Path:
        """The results in the format that CI services read."""
        return self.out / "junit.xml"

    @property
    def summary(self) -> Path:
        """The night in Markdown, for the page of a CI job."""
        return self.out / "summary.md"


def page_name(cell: str) -> str:
    """Return the file name of a cell's page: its id, other characters than [A-Za-z0-9_.-] replaced, and a digest."""
    import hashlib  # 3 ms, and `check` names no page

    plain = re.sub(r"[^\w.-]", "_", cell, flags=re.ASCII)[:100]
    return f"{plain}-{hashlib.sha256(cell.encode(errors='surrogatepass')).hexdigest()[:8]}.html"


def make_folder(path: Path, *, exist_ok: bool = False) -> None:
    """Create a folder and its parents. Raises MatrixError where that fails."""
    try:
        path.mkdir(parents=True, exist_ok=exist_ok)
    except OSError as error:
        raise unwritable(path, error) from error


def write_whole(path: Path, text: str, *, durable: bool = True) -> None:
    """Write a file atomically: a reader, or a crash, leaves the old file or the new one, never a part.

    Without `durable` a power cut may lose the file: for thousands of pages, which can be created again.
    Raises MatrixError when the disk is full or the folder is not writable.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with part.open("w", encoding="utf-8", newline="\n") as file:
                file.write(text)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        if durable:
            flush(path.parent)
    except OSError as error:
        raise unwritable(path, error) from error


def flush(path: Path) -> None:
    """Flush a file or a folder to the disk (65 ms for the 244 of a megatron-core, on an SSD).

    That of a folder makes the names in it durable: the fsync of a file does not cover its name.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def unwritable(path: Path, error: OSError) -> MatrixError:
    """Return the error for a file that can't be written, with the reason."""
    return MatrixError(
        "can't be written",
        where=str(path),
        got=error.strerror or str(error),
        fix="free disk space or choose another output folder, then resume the run: recorded results are kept",
    )
