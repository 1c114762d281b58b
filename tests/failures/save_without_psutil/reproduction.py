"""Save a checkpoint with upstream's own code, with psutil and as if it were not installed."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from matrix.kit import gpt, megatron

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matrix.kit.rank import Rank

# Seconds between the end of a process that writes and SaveWaits. A save of this model returned at most 0.1 s after it.
PATIENCE_S = 10.0


class SaveWaits(Exception):
    """The processes that write a checkpoint have ended, and the save still waits for them."""


def save(rank: Rank, *, installed: bool) -> int:
    """Save a small model; return the number of parameters. Raises SaveWaits where the save does not return.

    Without `installed`, psutil can't be imported. Raises LackError where it is to be installed, and is not.
    """
    if not installed:
        sys.modules["psutil"] = None  # type: ignore[assignment]
    megatron.start(rank)
    from megatron.core import dist_checkpointing

    model = gpt.build_model(rank)
    folder = rank.workdir / "checkpoint"
    folder.mkdir()
    state = model.sharded_state_dict(prefix="")
    with megatron.saving() if installed else nullcontext(), watch_writers():
        dist_checkpointing.save(sharded_state_dict=state, checkpoint_dir=str(folder))
    megatron.stop()
    return len(state)


@contextmanager
def watch_writers() -> Iterator[None]:
    """Raise SaveWaits in the body, PATIENCE_S after the last of the processes that write ended.

    They are children of the rank, or of a child of the rank (up to 0.14), which has these handlers, too.
    """
    rank = os.getpid()

    def count_down(*_: Any) -> None:
        signal.setitimer(signal.ITIMER_REAL, PATIENCE_S)

    def give_up(*_: Any) -> None:
        if os.getpid() != rank:
            os.kill(rank, signal.SIGALRM)
            os._exit(1)
        raise SaveWaits(f"the processes that write ended {PATIENCE_S:.0f} s ago, the save has not returned")

    handlers = {signal.SIGCHLD: count_down, signal.SIGALRM: give_up}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.setitimer(signal.ITIMER_REAL, 0)
