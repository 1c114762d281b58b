"""The memory that a sample takes, measured in a forked process; the memory of the machine."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from typing import Any

from matrix.kit import gpt_dataset as data


def machine_memory() -> int:
    """Return the memory of this machine in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def taken(samples: Any, short: Any) -> tuple[int, int]:
    """Return the bytes that the first sample of `samples` takes: at its peak, and after it was made.

    It is measured in a forked process: the kernel starts a process's peak (VmHWM) at its memory at the fork, so the
    peak of one length can't hide that of another. Resetting the peak (/proc/self/clear_refs) would also work where the
    kernel supports it. `short`, another dataset, returns its first sample before the measurement, which loads the
    pages of libraries: they are not present after a fork.
    """

    def measure() -> tuple[int, int]:
        short[0]
        start = data.held("VmRSS")
        samples[0]
        return data.held("VmHWM") - start, data.held("VmRSS") - start

    peak, remaining = forked(measure)
    return peak, remaining


def forked(function: Callable[[], Any]) -> Any:
    """Call `function` in a forked process; return its result or raise its exception. Raises EOFError if it died."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)

    def send_result() -> None:
        try:
            theirs.send((function(), None))
        except Exception as error:
            theirs.send((None, error))

    process = context.Process(target=send_result)
    process.start()
    theirs.close()
    try:
        value, error = ours.recv()
    finally:
        process.join()
    if error is not None:
        raise error
    return value
