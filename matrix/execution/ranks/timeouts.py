"""How long the supervisor waits for what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from matrix.errors import MatrixError

OVERTIME_S: Final = 5.0  # s: what all of a stop may take after the deadline, or after a Ctrl-C


@dataclass(frozen=True)
class Timeouts:
    """Waiting times in seconds; give another one to the Supervisor to change them. Raises MatrixError if too long.

    peer_grace_s: after a rank died or raised, its peers may end by themselves; their exceptions are evidence. In a
        collective on gloo they did in 2 to 21 ms; one that waits for a store or for NCCL does not for minutes.
    stacks_s: for all stacks. faulthandler took 1 ms; py-spy, on 3 processes with torch at once, 0.1 s.
    terminate_s: between SIGTERM and SIGKILL. Took 12 ms by Python's default; a handler may have to write something.
    kill_s: after SIGKILL. Took 80 ms with 1 GiB to be freed.
    sweep_s: for the descendants that ranks left behind, see descendants.py.
    """

    peer_grace_s: float = 2.0
    stacks_s: float = 2.0
    terminate_s: float = 1.0
    kill_s: float = 0.7
    sweep_s: float = 0.5

    def __post_init__(self) -> None:
        total = self.stacks_s + self.terminate_s + self.kill_s + self.sweep_s
        if total > OVERTIME_S:
            raise MatrixError("a stop takes too long", got=f"{total:g} s in all", expected=f"at most {OVERTIME_S:g} s")
