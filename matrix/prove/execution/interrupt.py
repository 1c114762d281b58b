"""Stop a process in order: at the first SIGINT, SIGTERM or SIGHUP, and when the process that started it dies.

Only the first signal raises KeyboardInterrupt, so that later ones do not interrupt the clean-up: tox sends SIGINT
twice, and the terminal sends it once more.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from matrix.read import kernel

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _raise(number: int, frame: FrameType | None) -> None:
    for ignored in SIGNALS:
        signal.signal(ignored, signal.SIG_IGN)
    raise KeyboardInterrupt


def once() -> None:
    """Raise KeyboardInterrupt at the first signal, in the main thread alone; under nohup SIGHUP stays ignored."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number in SIGNALS:
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _raise)
    kernel.follow(os.environ)


class TimeLimitReached(KeyboardInterrupt):
    """The time limit of a run has passed: its processes stop as at a Ctrl-C."""


@contextmanager
def after(seconds: float | None) -> Iterator[None]:
    """Raise TimeLimitReached in the block after this time, None for never; only in the main thread."""

    def end(number: int, frame: FrameType | None) -> None:
        raise TimeLimitReached

    if seconds is None:
        yield
        return
    previous = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
