"""A log file, compared with the catalog and the kinds of failure."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from matrix.catalog import loading
from matrix.catalog.kinds import kind_table
from matrix.catalog.regular_file import open_regular
from matrix.errors import MatrixError
from matrix.verdicts.lines import texts
from matrix.verdicts.log_match import Reading, match

UNREADABLE: Final = "the log can't be read"
FIX: Final = "name a readable file, or - for standard input: COMMAND | megatrix match -"


def read_log(name: str) -> Reading:
    """Return the faults of a log, "-" for standard input. Raises MatrixError for one that can't be read."""
    try:
        with sys.stdin.buffer if name == "-" else open_regular(Path(name), what=UNREADABLE, fix=FIX) as log:
            return match(texts(log), loading.load().failures, kind_table())
    except OSError as error:
        raise MatrixError(UNREADABLE, where=name, got=error.strerror, fix=FIX) from error
