"""How long the supervisor waits for what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from matrix.errors import MatrixError

OVERTIME_S: Final = 5.0  # s: what all of a stop may take after the deadline, or after a Ctrl-C


@dataclass(frozen=True)
class Patience:
    """Waiting times in seconds; give another one to the Supervisor to change them. Raises MatrixError if too long.

    peer_grace_s: after a rank died or raised, its peers may end by themselves; their exceptions are evidence. On gloo
        they did within 0.05 s, on a machine with 4 jobs a core within 0.6 s. NCCL peers wait 10 min: not worth it.
    stacks_s: for all stacks. faulthandler took 5 ms, py-spy on a process with torch 0.4 s.
    terminate_s: between SIGTERM and SIGKILL. Python's default ends in 3 ms; a handler may write something.
    kill_s: after SIGKILL. Took 30 ms with 2 GiB to be freed.
    sweep_s: for the descendants that ranks left behind.
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
