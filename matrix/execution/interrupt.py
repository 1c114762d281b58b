"""Ctrl-C, once: the first SIGINT or SIGTERM raises KeyboardInterrupt, what follows must not interrupt the clean-up.

tox sends SIGINT twice and the terminal once more; a plain handler's clean-up would itself be interrupted.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType


def once() -> None:
    """Install the handler, in the main thread; elsewhere do nothing."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _raise)


def _raise(number: int, frame: FrameType | None) -> None:
    for other in (signal.SIGINT, signal.SIGTERM):
        signal.signal(other, signal.SIG_IGN)
    raise KeyboardInterrupt
