"""Raise KeyboardInterrupt at the first SIGINT or SIGTERM only, so that later ones do not interrupt the clean-up.

tox sends SIGINT twice, and the terminal sends it once more.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType


def once() -> None:
    """Install the handler. Does nothing outside of the main thread."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _raise)


def _raise(number: int, frame: FrameType | None) -> None:
    for other in (signal.SIGINT, signal.SIGTERM):
        signal.signal(other, signal.SIG_IGN)
    raise KeyboardInterrupt
