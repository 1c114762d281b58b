"""A pump passes on what is in a pipe and never waits."""

from __future__ import annotations

import os
import selectors
from pathlib import Path
from unittest.mock import Mock

from matrix.prove.execution.ranks.rank_process import CHUNK, PIPE, Pump


def test_pump_passes_chunks_and_closes_at_the_end() -> None:
    read, write = os.pipe()
    taken, selector = list[bytes](), selectors.DefaultSelector()
    pump = Pump(os.fdopen(read, "rb"), taken.append, selector)
    assert (pump.read(), taken) == (False, [])
    os.write(write, b"one")
    assert (pump.read(), taken) == (True, [b"one"])
    os.write(write, b"two")
    os.close(write)
    pump.drain()
    assert (taken, pump.finished, selector.get_map() or {}) == ([b"one", b"two"], True, {})
    assert pump.read() is False


def test_drain_of_an_endless_stream_ends() -> None:
    taken = list[int]()
    with Path("/dev/zero").open("rb", buffering=0) as zeros:
        Pump(zeros, lambda chunk: taken.append(len(chunk)), Mock(selectors.BaseSelector)).drain()
    assert taken == [CHUNK] * (PIPE // CHUNK)
