"""The rank group: the processes of one job. One event loop starts them, reads their pipes and stops them."""

from __future__ import annotations

import json
import os
import selectors
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Final

from matrix.ground.verdicts.outcome import RankEnd
from matrix.prove.execution.ranks import forkserver_child, mpirun, variables
from matrix.prove.execution.ranks.descendants import look, wait_for
from matrix.prove.execution.ranks.forkserver import empty_main
from matrix.prove.execution.ranks.rank_main import READY
from matrix.prove.execution.ranks.rank_process import (
    LauncherProcess,
    Log,
    Pump,
    RankProcess,
    Readable,
    answers,
    end_of,
    kernel_view,
    parse_report,
    spy_on,
)
from matrix.prove.execution.ranks.rank_spec import GroupRequest, Timeouts
from matrix.prove.store.secrets import bare_bytes

REPORT: Final = 2**23  # bytes of a rank's report to read; the largest chain is under 4 MB (chain.py)
STACKS: Final = 2**20  # bytes of a rank's stacks to keep; faulthandler prints at most 100 threads
QUIET_S: Final = 0.05  # s without a byte after which a dump is complete; faulthandler wrote one in 1 ms
ANSWER_S: Final = 0.5  # s for a rank to print its stacks after SIGUSR1: 1 ms on an idle core
SIGNALS: Final = 4096  # signals to read at once, a byte each
LOST: Final = 255  # multiprocessing's exit code of a process whose forkserver died


class RankGroup:
    """The ranks of a request. Call start, watch, stop and close, then read how they ended.

    With gates, call wait_until_ready and open_gates before watch.

    `lifeline` becomes readable when the forkserver dies.
    """

    def __init__(self, request: GroupRequest, lifeline: int, timeouts: Timeouts, secrets: Sequence[str]) -> None:
        self.timed_out = self.server_died = False
        self._request, self._job, self._timeouts, self._lifeline = request, request.job, timeouts, lifeline
        self._secrets = secrets
        self._members: list[RankProcess] = []
        self._launcher: LauncherProcess | None = None
        self._began = time.monotonic()
        self._failed_at: float | None = None
        self._last_stack = 0.0
        self._selector = selectors.DefaultSelector()
        self._pumps: list[Pump] = []
        self._gates: list[int] = []  # the write end of each rank's gate
        self._selector.register(lifeline, selectors.EVENT_READ, self._lose_server)

    def start(self) -> None:
        """Start all ranks. Raises EOFError or OSError if the forkserver fails."""
        specs = self._request.specs()
        (self._request.folder / "work").mkdir()
        for gate in filter(None, map(self._request.gate, range(len(specs)))):
            os.mkfifo(gate, 0o600)
            self._gates.append(os.open(gate, os.O_RDWR))  # write-only would need a reader
        self._began = time.monotonic()
        with empty_main():
            if self._job.launcher == mpirun.NAME:
                self._start_mpirun(specs)
            else:
                for rank, spec in enumerate(specs):
                    self._admit(rank, partial(started, forkserver_child.enter, f"rank {rank}", spec))

    def wait_until_ready(self) -> bool:
        """Return whether all ranks wait at their gates: False if one ends before, or the deadline passes."""

        def decided() -> bool:
            lost = any(member.failed or member.ended_at is not None for member in self._members)
            return self.server_died or lost or all(member.ready for member in self._members)

        with woken(self._selector):
            self._until(decided, self._began + self._job.deadline_s)
        return not self.server_died and all(member.ready and not member.failed for member in self._members)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Count the length of a block in no deadline and in no seconds of the job."""
        paused_at = time.monotonic()
        try:
            yield
        finally:
            self._began += time.monotonic() - paused_at

    def open_gates(self, environ: Mapping[str, str]) -> None:
        """Let the ranks run their body, with these further variables."""
        for gate in self._gates:
            os.write(gate, json.dumps(dict(environ)).encode() + b"\n")

    def watch(self) -> None:
        """Wait until all ranks have ended, the deadline or the peers' grace has passed, or the forkserver has died."""
        deadline = self._began + self._job.deadline_s
        with woken(self._selector):
            while self._living and not self.server_died:
                limit = deadline
                if self._failed_at is not None:
                    limit = min(limit, self._began + self._failed_at + self._timeouts.peer_grace_s)
                if time.monotonic() >= limit:
                    self.timed_out = self._failed_at is None
                    return
                self._turn(limit)
        self._until(lambda: self._launched, time.monotonic() + self._timeouts.peer_grace_s)

    def stop(self, *, collect_stacks: bool) -> None:
        """Stop the running ranks: first their stacks if `collect_stacks`, then SIGTERM and SIGKILL to their groups."""
        if self._living and collect_stacks:
            self._take_stacks(time.monotonic() + self._timeouts.stacks_s)
        for member in self._living:
            member.stopped = True
        for number, limit_s in ((signal.SIGTERM, self._timeouts.terminate_s), (signal.SIGKILL, self._timeouts.kill_s)):
            for member in self._living:
                send(os.killpg, member.process.pid, number)
            if self._launcher and not self._launcher.ended:
                send(os.killpg, self._launcher.process.pid, number)
            self._until(lambda: not self._living and self._launched, time.monotonic() + limit_s)
        if lost := [member.process for member in self._members if member.exit_code == LOST]:
            # The end of the lifeline may arrive after those of the ranks.
            self._until(lambda: self.server_died, time.monotonic() + QUIET_S)
        if self.server_died:
            self._end_orphans([*lost, *([self._launcher.process] if self._launcher else [])])

    def close(self) -> None:
        """Read the rest of the pipes and close everything; call this after every writer has ended."""
        for pump in self._pumps:
            pump.finish()
        self._selector.close()
        while self._gates:
            os.close(self._gates.pop())
        if self._launcher:
            self._launcher.log.close()
            if self._launcher.ended:
                self._launcher.process.close()
        for member in self._members:
            member.log.close()
            if member.stacks:
                member.stacks = bytearray(bare_bytes(bytes(member.stacks), self._secrets))
                member.log.path.with_suffix(".stacks").write_bytes(member.stacks)
            if member.ended_at is not None:
                member.process.close()

    def ends(self) -> tuple[RankEnd, ...]:
        """Return how the ranks ended."""
        return tuple(member.end(self.seconds) for member in self._members)

    def logs(self) -> dict[int, str]:
        """Return the end of each rank's log."""
        return {member.rank: end_of(member.log.path) for member in self._members}

    def traces(self) -> dict[int, str]:
        """Return the stacks of each rank, "" for ranks whose stacks were not collected."""
        return {member.rank: member.trace for member in self._members}

    @property
    def lack(self) -> str:
        """Return what a rank lacked, so that its body did not run; "" if none did."""
        return next((member.report.lacks for member in self._members if member.report and member.report.lacks), "")

    @property
    def seconds(self) -> float:
        """Return the time since the start of the job."""
        return time.monotonic() - self._began

    @property
    def _living(self) -> list[RankProcess]:
        return [member for member in self._members if member.ended_at is None]

    @property
    def _launched(self) -> bool:
        """Return whether no launcher runs."""
        return self._launcher is None or self._launcher.ended

    def _start_mpirun(self, specs: Sequence[str]) -> None:
        folder = self._request.folder
        handoff = mpirun.Handoff(folder / "handoff")
        for rank, spec in enumerate(specs):
            self._admit(rank, partial(handoff.expect, rank, spec))
        # A killed mpirun leaves its temporary folder, which is then removed with the job's folder.
        environment = {**variables.of_device(self._job.device), **self._job.env, "TMPDIR": str(folder)}
        command = mpirun.command(self._job.path, len(specs), self._request.path, handoff.place)
        output, writer = get_context("forkserver").Pipe(duplex=False)
        with writer:
            process = started(forkserver_child.launch, mpirun.NAME, command, environment, [writer])
        self._launcher = LauncherProcess(process, self._log(mpirun.NAME), handoff)
        pump = self._pump(output, self._launcher.log.write)
        self._selector.register(handoff.listener, selectors.EVENT_READ, handoff.accept)
        self._selector.register(process.sentinel, selectors.EVENT_READ, partial(self._see_mpirun_end, pump))

    def _admit(self, rank: int, start: Callable[[Sequence[Connection]], BaseProcess | mpirun.ShimConnection]) -> None:
        """Add the process that `start` starts; `start` receives the write ends of its log, report and stacks pipes."""
        context = get_context("forkserver")
        log, report, stacks = pipes = [context.Pipe(duplex=False) for _ in range(3)]
        writers = [writer for _, writer in pipes]
        try:
            process = start(writers)
        finally:
            for writer in writers:
                writer.close()
        member = RankProcess(rank, process, self._log(f"rank-{rank}"))
        self._members.append(member)
        self._pump(log[0], member.log.write)
        reports = self._pump(report[0], partial(self._take_report, member, bytearray()))
        self._pump(stacks[0], partial(self._take_stack, member))
        self._selector.register(process.sentinel, selectors.EVENT_READ, partial(self._see_end, member, reports))

    def _log(self, name: str) -> Log:
        return Log(self._job.log_dir / f"{name}.log", secrets=self._secrets)

    def _pump(self, pipe: Readable, take: Callable[[bytes], object]) -> Pump:
        pump = Pump(pipe, take, self._selector)
        self._pumps.append(pump)
        return pump

    def _turn(self, limit: float) -> None:
        """Wait for events until `limit` on the monotonic clock, and handle them."""
        for key, _ in self._selector.select(max(0.0, limit - time.monotonic())):
            key.data()

    def _until(self, done: Callable[[], bool], limit: float, step_s: float = float("inf")) -> None:
        """Handle events until `limit` or `done`, which is checked after each event and every `step_s` seconds."""
        while not done() and (moment := time.monotonic()) < limit:
            self._turn(min(limit, moment + step_s))

    def _take_report(self, member: RankProcess, received: bytearray, chunk: bytes) -> None:
        if member.report or len(received) > REPORT:
            return
        received += chunk
        if chunk.endswith(b"\n"):
            lines = bytes(received).splitlines()
            member.report = next(filter(None, map(parse_report, lines)), None)
            member.ready = member.ready or READY.encode() in lines
            received.clear()
            member.reported_at = self.seconds
            self._note_failure(member)

    def _take_stack(self, member: RankProcess, chunk: bytes) -> None:
        self._last_stack = time.monotonic()
        if len(member.stacks) < STACKS:
            member.stacks += chunk

    def _see_end(self, member: RankProcess, reports: Pump) -> None:
        self._selector.unregister(member.process.sentinel)
        member.process.join()
        reports.drain()  # the report was written before the end, even if its event comes later
        member.exit_code, member.ended_at = member.process.exitcode, self.seconds
        self._note_failure(member)

    def _see_mpirun_end(self, output: Pump) -> None:
        launcher = self._launcher
        if launcher is None:
            return
        self._selector.unregister(launcher.process.sentinel)
        self._selector.unregister(launcher.handoff.listener)
        launcher.process.join()
        launcher.ended = True
        output.drain()
        for rank in launcher.handoff.close(launcher.process.exitcode or 0):
            message = f"mpirun ended with {launcher.process.exitcode} before it started this rank:\n"
            self._members[rank].log.write(message.encode() + end_of(launcher.log.path).encode())

    def _note_failure(self, member: RankProcess) -> None:
        if self._failed_at is None and member.failed:
            self._failed_at = self.seconds

    def _end_orphans(self, processes: Sequence[BaseProcess | mpirun.ShimConnection]) -> None:
        """Kill the processes of a forkserver that died and wait for them: its pipes end before its children die."""
        pids = [process.pid for process in processes if process.pid]
        for pid in pids:
            send(os.killpg, pid, signal.SIGKILL)
        wait_for(pids, self._timeouts.kill_s)

    def _lose_server(self) -> None:
        self._selector.unregister(self._lifeline)
        self.server_died = True

    def _take_stacks(self, limit: float) -> None:
        """Collect the stacks of the running ranks by faulthandler, after the deadline also by py-spy and the kernel."""
        members = [member for member in self._living if member.process.pid and answers(member.process.pid)]
        for member in members:
            send(os.kill, member.process.pid, signal.SIGUSR1)
        self._wait_for_stacks(limit, lambda: all(member.stacks or member.ended_at is not None for member in members))
        living = [member for member in self._living if member.process.pid]
        for member in living:
            if not member.stacks:
                reason = "no answer to SIGUSR1" if member in members else "no handler for SIGUSR1"
                member.stacks += f"{reason}: {kernel_view(member.process.pid or 0)}\n".encode()
        if self.timed_out:
            for member in living:
                self._take_stacks_below(member, limit)
            self._spy(living, limit)

    def _wait_for_stacks(self, limit: float, done: Callable[[], bool]) -> None:
        """Read stacks until `done` and nothing has arrived for QUIET_S."""
        self._last_stack = time.monotonic()
        self._until(
            lambda: done() and time.monotonic() - self._last_stack >= QUIET_S,
            min(limit, time.monotonic() + ANSWER_S),
            QUIET_S,
        )

    def _take_stacks_below(self, member: RankProcess, limit: float) -> None:
        """Collect the stacks of a rank's descendants. A forked one has its handler and pipe, and may block it."""
        for pid in sorted(look().below(member.process.pid or 0)):
            member.stacks += f"\nprocess {pid}, started by this rank: {kernel_view(pid)}\n".encode()
            if answers(pid) and time.monotonic() < limit:
                size = len(member.stacks)
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGUSR1)
                self._wait_for_stacks(limit, lambda: len(member.stacks) > size)  # noqa: B023  (called before the next iteration)

    def _spy(self, living: Sequence[RankProcess], limit: float) -> None:
        spies = spy_on([member.process.pid or 0 for member in living])
        pumps = [
            self._pump(spy.stdout, partial(self._take_stack, member))
            for spy, member in zip(spies, living, strict=False)
            if spy.stdout
        ]
        try:
            self._until(lambda: all(pump.finished for pump in pumps), limit)
        finally:
            for spy in spies:
                spy.kill()
                spy.wait()


@contextmanager
def woken(selector: selectors.BaseSelector) -> Iterator[None]:
    """Let every signal end a wait of `selector` during a block in the main thread.

    Otherwise one that another thread receives, or that arrives between Python's last look and the system call, is
    handled after the wait: a Ctrl-C is lost until the deadline.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    selector.register(reader, selectors.EVENT_READ, partial(os.read, reader, SIGNALS))
    previous = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(previous)
        selector.unregister(reader)
        os.close(reader)
        os.close(writer)


def send(how: Callable[[int, int], None], pid: int | None, number: int) -> None:
    """Send a signal with `how`, os.kill or os.killpg. A process that has ended or leads no group yet is no error."""
    if pid is None:
        return
    try:
        how(pid, number)
    except ProcessLookupError:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def started(body: Callable[..., None], name: str, *arguments: Any) -> BaseProcess:
    """Return a process forked from the forkserver; the last argument is a list, whose items are passed one by one."""
    *values, writers = arguments
    process = forkserver_child.ForkedProcess(target=body, args=(*values, *writers), name=name)
    process.start()
    return process
