"""The end of processes that a test did not start itself."""

from __future__ import annotations

import os
import select
from typing import Final

HANG_S: Final = 300.0  # limit for hanging tests: 2 s on an idle machine, 60 s on two cores that eight users share


def ended(process: int) -> bool:
    """Return whether a process, which need not be a child of this one, ends within HANG_S."""
    try:
        handle = os.pidfd_open(process)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], HANG_S)[0])
    finally:
        os.close(handle)
