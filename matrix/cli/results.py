"""Find the newest run in an output folder; print the summary of a run."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from matrix.bisection.probing import RUN_LABEL as BISECTION
from matrix.errors import MatrixError
from matrix.report.summary import colour_wanted, summary
from matrix.store.paths import Paths
from matrix.verdicts.record import Record


def newest(out: Path) -> str:
    """Return the id of the newest run, bisection rounds excluded. Raises MatrixError when there is none."""
    runs = sorted(
        path.name for path in Paths(out).run("").glob("*") if path.is_dir() and not path.name.endswith(f"-{BISECTION}")
    )
    if not runs:
        raise MatrixError("there is no run yet", where=str(out), fix="megatrix run makes one")
    return runs[-1]


def print_summary(records: Sequence[Record], out: Path, width: int) -> None:
    """Print the summary and the paths of the pages."""
    print()
    print(summary(records, width=width, colour=colour_wanted(sys.stdout, os.environ)), end="")
    print(f"page: {Paths(out).page}  junit: {Paths(out).junit}")
