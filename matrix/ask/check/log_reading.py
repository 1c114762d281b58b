"""A log file, or a folder of them, compared with the catalog and the kinds of failure."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from matrix.ground.catalog import loading
from matrix.ground.catalog.kinds import kind_table
from matrix.ground.catalog.regular_file import open_regular
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.lines import texts
from matrix.ground.verdicts.log_match import Reading, match_logs
from matrix.ground.verdicts.outcome import Raised
from matrix.ground.verdicts.rank_logs import RankLog, is_log, rank_logs

UNREADABLE: Final = "the log can't be read"
FIX: Final = "name a readable file, or - for standard input: COMMAND | megatrix match -"


def read_log(*names: str) -> Reading:
    """Return the faults of logs of one job: files, or folders with the logs of ranks; "-" is standard input.

    Raises MatrixError for a log that can't be read, and for a folder without logs.
    """
    alone = len(names) == 1
    try:
        logs = (log for name in names for log in _logs(name, "" if alone else name))
        return match_logs(logs, loading.load().failures, kind_table(), _inferred)
    except OSError as error:
        raise MatrixError(UNREADABLE, where=error.filename or ", ".join(names), got=error.strerror, fix=FIX) from error


def _inferred(raised: Iterable[Raised]) -> Mapping[str, Sequence[str]]:
    """Return the versions that tracebacks may be of. A log without one opens no index of history."""
    with_frames = [exception for exception in raised if exception.frames]
    if not with_frames:
        return {}
    from matrix.ask.history import inferred

    return inferred(with_frames)


def _logs(name: str, title: str) -> Iterator[tuple[RankLog, Iterator[str]]]:
    """Yield the log of this name, or those in the folder of this name, by rank; each is open while it is read.

    `title` is its name in the answer, "" where there is no other.
    """
    folder = Path(name)
    if not name:
        raise MatrixError(
            "a log without a name", got='""', expected="a name: is a variable of the shell unset?", fix=FIX
        )
    if name == "-":
        if sys.stdin is None:  # <&- in a shell
            raise MatrixError("standard input is closed", fix="COMMAND | megatrix match -")
        with sys.stdin.buffer as log:
            yield RankLog(title), texts(log)
    elif not folder.is_dir():
        with open_regular(folder, what=UNREADABLE, fix=FIX) as log:
            yield RankLog(title), texts(log)
    else:
        files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
        logs = rank_logs([path for path in files if is_log(path)])
        if not logs:
            got = f"{len(files)} files, none with the name of a log"
            raise MatrixError(UNREADABLE, where=name, got=got, expected="*.log, *.out, *.err, *.txt, *.gz", fix=FIX)
        for rank_log in logs:
            with open_regular(folder / rank_log.path, what=UNREADABLE, fix=FIX) as log:
                yield replace(rank_log, path=f"{title}/{rank_log.path}" if title else rank_log.path), texts(log)
