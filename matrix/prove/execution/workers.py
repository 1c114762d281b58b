"""Cases in pytest-xdist: the controller owns the plan and the journal, and its workers run the cases.

A worker sends starts and records to the controller's relay, as the processes of a run send theirs to the run. Nothing
here imports xdist, which a cell may lack: the hooks and the scheduler follow its protocols.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Protocol

import pytest

from matrix.ground.catalog.codec import decode, encode
from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.folders import FAILURES
from matrix.ground.catalog.stack import MCORE, TE
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.outcome import Outcome, OutcomeKind
from matrix.ground.verdicts.planned import Planned
from matrix.ground.verdicts.record import Record
from matrix.prove.execution.case_context import Options
from matrix.prove.execution.relay import Receiver, Sender
from matrix.prove.execution.reproduction import not_run
from matrix.prove.execution.session import Session, item_name
from matrix.prove.planning.packing import Demand
from matrix.prove.store import journal

DIST: Final = "loadgroup"  # the value of --dist for which the controller's scheduler is used
HANDED: Final = "megatrix"  # the controller's message in a worker's input, and in its output why it ended
AHEAD: Final = 2  # cases that a worker holds: xdist starts one only when the next, or the end, is known
LOST: Final = "started and not finished: its pytest worker {worker} ended ({error})"


class Worker(Protocol):
    """A worker, as its controller sees it (xdist.workermanage.WorkerController)."""

    gateway: Any
    workerinput: dict[str, Any]

    @property
    def shutting_down(self) -> bool:
        """Whether it has been asked to end, or has ended."""

    def send_runtest_some(self, indices: Sequence[int]) -> None:
        """Send it the items with these indices of its collection."""

    def shutdown(self) -> None:
        """Let it end after the items that it has."""


class WorkerSession(Session):
    """The session of a worker: the plan is its controller's, and so is the journal, behind the relay."""

    def __init__(self, options: Options, out: Path, workerinput: Mapping[str, Any]) -> None:
        if HANDED not in workerinput:
            raise MatrixError(
                "pytest-xdist's controller has no plan",
                got="cases outside of its arguments",
                fix=f"name them, e.g. pytest -n 2 {FAILURES}",
            )
        plan = json.loads(workerinput[HANDED])
        super().__init__(replace(options, run_folder=Path(plan["run_folder"]), relay=plan["relay"]), out)
        self.planned = list(decode(tuple[Planned, ...], plan["planned"]))

    @cached_property
    def ranks_of_value(self) -> dict[str, int]:
        """Return {}: the order is the controller's. All workers collect in one, also where their machine changes."""
        return {}

    @cached_property
    def journal(self) -> Sender:
        """Return the connection to the controller; a resumed run waits until this process has ended."""
        journal.hold(self.run_folder)
        return self.sender


class Groups:
    """A scheduler of pytest-xdist: the cases of a group go to one worker, the group with the largest case first.

    xdist's own for groups hands a case out again that ended its worker, and puts the group into the ids of the cases,
    which --lf then does not find. `size` is the sort key of a case; groups whose largest cases are equal are sorted by
    their length. Of groups that differ in the last number of `size` alone, a worker gets one with the `overlays` of its
    last. `started` holds the ids of the cases whose start was reported.
    """

    def __init__(
        self,
        workers: int,
        group: Callable[[str], str],
        started: Collection[str],
        size: Callable[[str], tuple[float, ...]] = lambda one: (),
        overlays: Callable[[str], str] = lambda one: "",
    ) -> None:
        self._workers, self._group, self._started, self._size = workers, group, started, size
        self._overlays = overlays
        self._last: dict[Worker, str] = {}  # the overlays of each worker's last group
        self._ids: dict[Worker, list[str]] = {}  # the collection of each worker
        self._waiting: list[list[str]] = []  # groups without a worker
        self._rest: dict[Worker, list[str]] = {}  # of a worker's group: not sent to it yet
        self._sent: dict[Worker, list[str]] = {}  # sent and not complete; the first one runs
        self._scheduled = False

    @property
    def nodes(self) -> list[Worker]:
        """The workers."""
        return list(self._sent)

    @property
    def collection_is_completed(self) -> bool:
        """Whether all initial workers have collected."""
        return self._scheduled or len(self._ids) >= self._workers

    @property
    def has_pending(self) -> bool:
        """Whether a case is not complete."""
        return bool(self._waiting or any(self._rest.values()) or any(self._sent.values()))

    @property
    def tests_finished(self) -> bool:
        """Whether no worker needs another case, so that all may end after those that they have."""
        ahead = any(len(sent) >= AHEAD for sent in self._sent.values())
        return self._scheduled and not (self._waiting or any(self._rest.values()) or ahead)

    def add_node(self, node: Worker) -> None:
        """Add a worker that starts to collect."""
        self._sent[node], self._rest[node] = [], []

    def add_node_collection(self, node: Worker, collection: Sequence[str]) -> None:
        """Store what a worker collected. Raises pytest.UsageError if another worker collected something else."""
        self._ids[node] = list(collection)
        if any(ids != self._ids[node] for ids in self._ids.values()):
            raise pytest.UsageError(f"{node.gateway.id} collected other cases than the other workers of pytest-xdist")

    def schedule(self) -> None:
        """Send cases to the workers that have collected."""
        if not self._scheduled:
            self._scheduled = True
            groups: dict[str, list[str]] = {}
            for nodeid in next(iter(self._ids.values())):
                groups.setdefault(self._group(nodeid), []).append(nodeid)
            self._waiting = sorted(groups.values(), key=lambda ids: (max(map(self._size, ids)), len(ids)), reverse=True)
        for node in self.nodes:
            self._feed(node)

    def mark_test_complete(self, node: Worker, item_index: int, duration: float = 0) -> None:
        """Send a worker that completed a case the next one."""
        self._sent[node].remove(self._ids[node][item_index])
        self._feed(node)

    def remove_node(self, node: Worker) -> str | None:
        """Return the case that a worker ran when it ended, if any; the others that it had go to another worker."""
        sent, unsent = self._sent.pop(node), self._rest.pop(node)
        lost = sent.pop(0) if sent and sent[0] in self._started else None
        if sent or unsent:
            self._waiting.insert(0, [*sent, *unsent])
        for worker in self.nodes:
            self._feed(worker)
        return lost

    def mark_test_pending(self, item: str) -> None:
        """Do nothing: no case runs twice."""

    def remove_pending_tests_from_node(self, node: Worker, indices: Sequence[int]) -> None:
        """Do nothing: cases that were sent are not taken back."""

    def _next(self, node: Worker) -> list[str]:
        """Remove the next group of a worker from those that wait, and return it."""
        waiting = [(self._size(ids[0])[:-1], self._overlays(ids[0])) for ids in self._waiting]
        others = [overlays for worker, overlays in self._last.items() if worker is not node]
        index = next_group(waiting, self._last.get(node, ""), others)
        self._last[node] = waiting[index][1]
        return self._waiting.pop(index)

    def _feed(self, node: Worker) -> None:
        if node not in self._ids or node.shutting_down:
            return
        while len(self._sent[node]) < AHEAD:
            if not self._rest[node] and not self._waiting:
                node.shutdown()
                return
            self._rest[node] = self._rest[node] or self._next(node)
            self._sent[node].append(self._rest[node].pop(0))
            node.send_runtest_some([self._ids[node].index(self._sent[node][-1])])


class Controller:
    """The hooks of the process that distributes the cases of `session` to workers."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._named: Mapping[str, Planned] = {item_name(item): item for item in session.planned}
        self._started: set[str] = set()
        self._ended: dict[str, str] = {}  # why a worker ended, by its id
        self._workers = 0
        self._error = ""  # why the session ended: the journal can't be written, or no rank starts
        self._lost: list[Record] = []
        self._relay = Receiver(
            lambda record: self._store(session.journal.result, record),
            lambda key: self._store(session.journal.started, key),
            secrets=session.secrets,
        )
        self._plan = json.dumps(
            {
                "run_folder": str(session.run_folder.absolute()),
                "relay": self._relay.address,
                "planned": encode(session.planned),
            }
        )

    def pytest_report_header(self) -> str:
        """Return the line that names the base."""
        return self._session.installation.header

    def pytest_xdist_setupnodes(self, specs: Sequence[object]) -> None:
        """Store how many workers start."""
        self._workers = len(specs)

    def pytest_configure_node(self, node: Worker) -> None:
        """Give a worker the plan. It is the whole one: a worker that replaces another must collect the same."""
        node.workerinput[HANDED] = self._plan

    def pytest_xdist_make_scheduler(self, config: pytest.Config) -> Groups | None:
        """Return the scheduler, unless another one was chosen with --dist."""
        if config.getoption("dist") != DIST:
            return None
        return Groups(self._workers, self._group, self._started, self._size, self._overlays)

    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """Limit the plan to what the workers collected (-k, --lf), and write it."""
        self._session.choose({item.key for item in map(self._of, ids) if item})
        if self._session.planned:
            try:
                _ = self._session.journal
                self._session.start_builds()
            except MatrixError as error:
                raise pytest.UsageError(str(error)) from None

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Store that a worker reported the start of a case."""
        self._started.add(nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_testnodedown(self, node: Worker, error: object) -> None:
        """Store why a worker ended; its own reason, if it had one, is printed at the end."""
        reason = getattr(node, "workeroutput", {}).get(HANDED, "")
        self._ended[node.gateway.id] = reason or str(error)
        self._error = self._error or reason

    def pytest_handlecrashitem(self, crashitem: str, report: Any) -> None:
        """Keep the record of a case that was lost with its worker."""
        if item := self._of(crashitem):
            worker = report.node.gateway.id
            outcome = Outcome(OutcomeKind.NOT_REACHED, LOST.format(worker=worker, error=self._ended.get(worker)))
            run = self._session.run_folder.name
            self._lost.append(not_run(item, self._session.installation.catalog, outcome, run))

    def pytest_keyboard_interrupt(self) -> None:
        """Interrupt the workers, which then stop the ranks of their cases."""
        self._relay.stop()

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self) -> Generator[None, object, object]:
        """After xdist's hook, which waits for the workers, close the relay and store the losses.

        A loss must follow its start in the journal, and starts may still have been on their way.
        """
        try:
            return (yield)
        finally:
            self._relay.__exit__(None, None, None)
            for record in self._lost:
                self._store(self._session.journal.result, record)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print why the session ended."""
        if self._error:
            terminalreporter.write_line(self._error, red=True)

    def _of(self, nodeid: str) -> Planned | None:
        return self._named.get(nodeid.partition("::")[2])

    def _group(self, nodeid: str) -> str:
        item = self._of(nodeid)
        return group(item) if item else nodeid

    def _size(self, nodeid: str) -> tuple[float, ...]:
        """Return the sort key of a case: those that wait for no build first, then those of most value."""
        item, ranks = self._of(nodeid), self._session.ranks_of_value
        return (item.key not in self._session.builds, -ranks.get(item.key, 0), *size(item)) if item else ()

    def _overlays(self, nodeid: str) -> str:
        item = self._of(nodeid)
        return overlays(item) if item else ""

    def _store(self, write: Callable[[Any], str], value: object) -> None:
        """Write to the journal; if it can't be written, end the session, in which no case may run unrecorded."""
        try:
            write(value)
        except MatrixError as error:
            self._error = str(error)
            os.kill(os.getpid(), signal.SIGINT)


def group(item: Planned) -> str:
    """Return the group of a case: its overlays, which one worker provides once.

    At level contract, where it has none, and at level gpu, where it may wait for GPUs, it is the case itself.
    """
    return overlays(item) if item.level is Level.CPU else item.key


def overlays(item: Planned) -> str:
    """Return what is laid over the base of a case, as a text: cases with the same follow each other."""
    return " ".join(
        (item.source or str(item.cell.stack[MCORE]), item.te_source or str(item.cell.stack[TE]), *item.packages)
    )


def next_group(waiting: Sequence[tuple[object, str]], last: str, others: Collection[str]) -> int:
    """Return the index of the group that a worker gets next; groups are (priority, overlays), sorted by priority.

    Of those with the first priority, it is one with the overlays of the worker's last case, whose imports it may still
    hold; else one with overlays that no other worker had last.
    """
    largest = [index for index, (priority, _) in enumerate(waiting) if priority == waiting[0][0]]
    same = [index for index in largest if waiting[index][1] == last]
    unused = [index for index in largest if waiting[index][1] not in others]
    return [*same, *unused, *largest][0]


def size(item: Planned) -> tuple[int, float]:
    """Return the sort key of a case: at level gpu the most GPUs first, then the longest, with reverse=True."""
    return Demand(item.gpus, item.seconds).size if item.level is Level.GPU else (0, 0.0)
