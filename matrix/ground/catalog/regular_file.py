"""Read what others wrote within limits: regular files of a limited size, parsed in limited depth and time.

It runs in cells: standard library only.
"""

from __future__ import annotations

import hashlib
import math
import os
import signal
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import BinaryIO, Final

from matrix.ground.errors import MatrixError

LARGEST: Final = 64 * 2**20  # bytes of a file that is read whole; the uv.lock of a large monorepo has 3 MB
LARGEST_IN_PARTS: Final = 2**40  # bytes of a file that is read in parts, such as a log: 1 TiB; /proc/kcore has 128
# Seconds of CPU time in which one input is parsed: all of a megatron-core takes 2, the largest lock file 1.
PARSED_S: Final = 10.0
AGAIN_S: Final = 0.1  # between two checks of a time that has ended, seconds: code may catch the first error
UNREADABLE: Final = "the file can't be read"
KINDS: Final = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO (named pipe)",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class UnreadableError(MatrixError):
    """A file that is missing, not readable, not a regular file, or too large."""


def open_regular(
    path: Path, *, what: str = UNREADABLE, largest: int = LARGEST_IN_PARTS, fix: str | None = None
) -> BinaryIO:
    """Open a regular file of at most `largest` bytes to read bytes, links followed.

    Raises UnreadableError with `what` and `fix`: also for a FIFO, which would block, a device, a socket, a folder, and
    a file that the kernel generates while it is read (/proc/kmsg), whose size is 0 and whose end may never come.
    """
    expected, descriptor = f"a regular file of at most {largest:,} bytes", -1
    try:
        got = _refused(path.stat(), largest)  # before it is opened: opening a device may have effects
        if not got:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            got = _refused(os.fstat(descriptor), largest)  # it may have been replaced
        if not got and not os.fstat(descriptor).st_size and os.pread(descriptor, 1, 0):
            got = "a file that the kernel generates"
        if not got:
            return os.fdopen(descriptor, "rb")
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        got = getattr(error, "strerror", None) or str(error)
    if descriptor >= 0:
        os.close(descriptor)
    raise UnreadableError(what, where=str(path), got=got, expected=expected, fix=fix or "name a readable file")


def read_regular(path: Path, *, what: str = UNREADABLE, largest: int = LARGEST, fix: str | None = None) -> bytes:
    """Return the content of a regular file of at most `largest` bytes. Raises UnreadableError, as open_regular does."""
    with open_regular(path, what=what, largest=largest, fix=fix) as file:
        try:
            content = file.read(largest + 1)
            got = "" if len(content) <= largest else f"more than {largest:,} bytes: it grows while it is read"
        except OSError as error:
            got = error.strerror or str(error)
    if got:
        raise UnreadableError(what, where=str(path), got=got, expected=f"at most {largest:,} bytes", fix=fix)
    return content


def read_regular_text(path: Path, *, errors: str = "replace", what: str = UNREADABLE, largest: int = LARGEST) -> str:
    """Return the text of a regular file in UTF-8. Raises UnreadableError; with errors="strict" UnicodeDecodeError."""
    return read_regular(path, what=what, largest=largest).decode("utf-8", errors)


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, read in blocks of 1 MiB."""
    total = hashlib.sha256()
    with open_regular(path) as file:
        while block := file.read(1 << 20):
            total.update(block)
    return total.hexdigest()


@contextmanager
def within_limits(where: str, seconds: float = PARSED_S) -> Iterator[None]:
    """Parse or evaluate in the block what others wrote; `where` is its file.

    Raises MatrixError where the input is nested more deeply than Python's recursion limit or its parser's stack allows,
    and where the block takes more than `seconds` of CPU time, which is limited in the main thread only. Blocks nest:
    the time of an inner one counts in the outer one.
    """
    end, handler = math.inf, signal.getsignal(signal.SIGVTALRM)
    with suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGVTALRM, _check_time)
        end = time.process_time() + seconds
    _limits.append((end, where))
    try:
        _check_time()
        if end < math.inf:
            _arm()
        yield
    except (RecursionError, MemoryError) as error:  # MemoryError: of Python's own parser
        raise MatrixError(
            "nested too deeply, or too long a chain",
            where=where,
            got=str(error) or type(error).__name__,
            expected=f"what {sys.getrecursionlimit():,} nested calls can read",
            fix="split the deepest expression, statement or chain of imports, or leave the file out",
        ) from None
    finally:
        _limits.pop()
        if end < math.inf:
            _arm()
            signal.signal(signal.SIGVTALRM, handler)


_limits: Final[list[tuple[float, str]]] = []  # of the blocks that run: CPU time of their end, file; innermost last


def _arm() -> None:
    """Start the timer of the block that ends first. It counts in ticks of some milliseconds, and never fires early."""
    left = min((deadline for deadline, _ in _limits), default=math.inf) - time.process_time()
    signal.setitimer(signal.ITIMER_VIRTUAL, max(left, 0.001) if left < math.inf else 0, AGAIN_S * (left < math.inf))


def _check_time(number: int = 0, frame: FrameType | None = None) -> None:
    """Raise MatrixError if the time of a block has ended."""
    for deadline, where in _limits:
        if time.process_time() >= deadline:
            raise MatrixError(
                "takes too long to read",
                where=where,
                got="no end within its CPU time",
                fix="leave the file out of what is read, or split it",
            )


def _refused(status: os.stat_result, largest: int) -> str:
    """Return why a file of this status is not opened, "" for one that is."""
    if not stat.S_ISREG(status.st_mode):
        return KINDS.get(stat.S_IFMT(status.st_mode), "no regular file")
    return f"a file of {status.st_size:,} bytes" if status.st_size > largest else ""
