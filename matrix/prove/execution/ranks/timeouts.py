"""The timeouts of the supervisor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from matrix.ground.errors import MatrixError

OVERTIME_S: Final = 5.0  # s: the longest stop after the deadline or a Ctrl-C


@dataclass(frozen=True)
class Timeouts:
    """Timeouts of a stop in seconds. Raises MatrixError if their sum is above OVERTIME_S.

    peer_grace_s: for the peers of a rank that died or raised to end by themselves; their exceptions are evidence. In a
        gloo collective they ended within 2 to 21 ms; a peer that waits for a store or for NCCL takes minutes.
    stacks_s: for all stacks. faulthandler took 1 ms; py-spy, on 3 processes with torch at once, 0.1 s.
    terminate_s: between SIGTERM and SIGKILL. Python's default handler took 12 ms; other handlers may write files.
    kill_s: after SIGKILL. Took 80 ms with 1 GiB to free.
    sweep_s: for the descendants that ranks leave running, see descendants.py.
    """

    peer_grace_s: float = 2.0
    stacks_s: float = 2.0
    terminate_s: float = 1.0
    kill_s: float = 0.7
    sweep_s: float = 0.5

    def __post_init__(self) -> None:
        total = self.stacks_s + self.terminate_s + self.kill_s + self.sweep_s
        if total > OVERTIME_S:
            raise MatrixError(
                "the timeouts of a stop are too long", got=f"{total:g} s in all", expected=f"at most {OVERTIME_S:g} s"
            )
