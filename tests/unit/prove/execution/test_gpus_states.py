"""The pool of GPUs, through any order of takes, waits and releases: no GPU has two users, and each waiter is served."""

from __future__ import annotations

import contextlib
import queue
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from matrix.prove.execution.gpus import Pool
from matrix.prove.planning.packing import Demand
from tests.profiles import tries

NAMES = ("0", "1", "2", "3")
HANG_S = 60.0  # limit for hanging tests


class Sharing(RuleBasedStateMachine):
    """Cases on four GPUs. Each has a pool of its own, as processes do; at most one waits, since it holds the gate."""

    def __init__(self) -> None:
        super().__init__()
        self.temporary = TemporaryDirectory()
        self.running: list[tuple[tuple[str, ...], contextlib.ExitStack]] = []
        self.waiting: threading.Thread | None = None
        self.served: queue.Queue[tuple[tuple[str, ...], contextlib.ExitStack]] = queue.Queue()

    @property
    def free(self) -> int:
        """The number of GPUs that no case has."""
        return len(NAMES) - sum(len(names) for names, _ in self.running)

    def take(self, count: int) -> None:
        """Take GPUs, perhaps after a wait."""
        held = contextlib.ExitStack()
        names = held.enter_context(Pool(NAMES, Path(self.temporary.name)).take(Demand(count)))
        self.served.put((names, held))

    @precondition(lambda self: not self.waiting and self.free)
    @rule(data=st.data())
    def take_free_ones(self, data: st.DataObject) -> None:
        """Take what is free, without a wait."""
        count = data.draw(st.integers(1, self.free))
        self.take(count)
        self.running.append(self.served.get_nowait())
        assert len(self.running[-1][0]) == count

    @precondition(lambda self: not self.waiting and self.free < len(NAMES))
    @rule(data=st.data())
    def wait(self, data: st.DataObject) -> None:
        """Wait for more than is free."""
        count = data.draw(st.integers(self.free + 1, len(NAMES)))
        self.waiting = threading.Thread(target=self.take, args=(count,), daemon=True)
        self.waiting.start()

    @precondition(lambda self: not self.waiting and self.running)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        """End a case."""
        _, held = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        held.close()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def serve(self, data: st.DataObject) -> None:
        """End all cases, in any order: whoever waits gets its GPUs, at the latest with the last one."""
        for _, held in data.draw(st.permutations(self.running)):
            held.close()
        self.running = [self.served.get(timeout=HANG_S)]
        self.waiting = None

    @invariant()
    def each_gpu_has_at_most_one_case(self) -> None:
        used = [name for names, _ in self.running for name in names]
        assert len(used) == len(set(used))
        assert set(used) <= set(NAMES)

    def teardown(self) -> None:
        for _, held in self.running:
            held.close()
        if self.waiting:
            self.served.get(timeout=HANG_S)[1].close()
        self.temporary.cleanup()


TestSharing = Sharing.TestCase
TestSharing.settings = settings(tries(50), stateful_step_count=20)
