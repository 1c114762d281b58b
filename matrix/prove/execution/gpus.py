"""The GPUs of a machine, shared by the processes that run cases on it (pytest-xdist's workers, several runs).

A claim is a pipe that its process holds open; its name holds the GPU, or the pool in which a case waits, and the demand
of the case. When the process ends for any reason, the kernel closes the pipe, which wakes the processes that wait. Each
of them decides by all claims which cases start (planning.packing.grants); the gate, a lock, lets one process at
a time decide. A case gets all of its GPUs or waits, and holds none meanwhile, so that two never wait for each other.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import select
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from matrix.ground.catalog.failure import Level
from matrix.ground.errors import MatrixError
from matrix.kit.rank import LackError
from matrix.prove.planning.packing import Card, Demand, Free, grants, shared
from matrix.prove.provision import host

WAIT_S: Final = 3600.0  # s that a case in a container may wait for GPUs that other runs hold
JOB_WAIT_S: Final = 120.0  # the same in a job of Slurm: its GPUs are its own, but the task it replaces may still end
GATE: Final = "gate"  # the lock of the process that decides
CLAIM: Final = "claim-4"  # the start of a claim's name: its form, so that another version ignores it
FIX: Final = "remove it, or name another folder in MEGATRIX_GPU_LOCKS"

LOCKS: Final = "MEGATRIX_GPU_LOCKS"
WAIT: Final = "MEGATRIX_GPU_WAIT"  # the longest wait in s, which is set in containers
TEMPORARY: Final = Path("/tmp")  # noqa: S108  (not $TMPDIR, which differs between the jobs of a user; checked below)


def locks(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the locks: $MEGATRIX_GPU_LOCKS, which is set in containers, or a folder of this user."""
    folder = environ.get(LOCKS)
    return Path(folder) if folder else TEMPORARY / f"megatrix-gpus-{os.getuid()}"


def made(folder: Path) -> Path:
    """Make the folder of the locks if it is missing; raise MatrixError unless it is this user's own or root's.

    Anyone can make a folder or a link of that name in /tmp first.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = folder.lstat()
    except OSError as error:
        raise unusable(folder, error) from None
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid not in (0, os.geteuid()):
        raise MatrixError(
            "the GPU locks can't be used",
            where=str(folder),
            got=f"{'a folder' if stat.S_ISDIR(facts.st_mode) else 'no folder'} of user {facts.st_uid}",
            expected=f"a folder of user {os.geteuid()} or of root",
            fix=FIX,
        )
    return folder


def of_job(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the GPUs of this Slurm job by their names on the node; () outside of a job.

    CUDA_VISIBLE_DEVICES numbers them from 0 if Slurm hides the others (ConstrainDevices).
    """
    return tuple(name for name in environ.get("SLURM_JOB_GPUS", "").split(",") if name)


def wait_s(environ: Mapping[str, str]) -> float | None:
    """Return the longest wait of a case in s: $MEGATRIX_GPU_WAIT, or that of a Slurm job; None for no limit."""
    return float(environ[WAIT]) if WAIT in environ else JOB_WAIT_S if of_job(environ) else None


@dataclass(frozen=True)
class GpuClaim:
    """A claim of a case on `target`: the name of a GPU that it holds, or of the pool in which it waits.

    `time` is that of the claim in ns, which is unique in a folder: a case has one for all of its GPUs.
    """

    time: int
    process: int
    demand: Demand
    target: str

    @property
    def name(self) -> str:
        """Return the name of its pipe; names sort by their time. `seconds` is left out: no decision depends on it."""
        numbers = (self.process, self.demand.gpus, self.demand.memory, self.demand.card)
        return ".".join([CLAIM, f"{self.time:020}", *map(str, numbers), self.target])

    @classmethod
    def of(cls, name: str) -> GpuClaim:
        """Return the claim of a pipe."""
        _, *numbers, target = name.split(".", 6)
        moment, process, gpus, memory, card = map(int, numbers)  # of another name: ValueError
        return cls(moment, process, Demand(gpus, memory=memory, card=card), target)

    @contextlib.contextmanager
    def held(self, folder: Path) -> Iterator[None]:
        """Hold the claim's pipe in `folder` for the length of the context. Raises MatrixError."""
        path = folder / self.name
        with contextlib.ExitStack() as pipe:
            pipe.callback(path.unlink, missing_ok=True)
            try:
                os.mkfifo(path, 0o600)
                pipe.enter_context(path.open("r+b", buffering=0))  # "r" alone would wait for a writer
            except OSError as error:
                raise unusable(path, error) from None
            yield


class Pool:
    """GPUs by UUID, which is the same in every container and job.

    `folder` holds the claims; it must be local to the machine and common to all its processes. Cases of pools with the
    same GPUs wait in one order. `say` is called with a message before a wait, which lasts at most `wait_s`, None for no
    limit. `memory` is that of the host, `cards` that of the GPUs that cases may share, in bytes.
    """

    def __init__(
        self,
        names: Sequence[str],
        folder: Path | None = None,
        say: Callable[[str], None] = lambda text: None,
        *,
        memory: int | None = None,
        wait_s: float | None = None,
        cards: Mapping[str, int] | None = None,
    ) -> None:
        self._cards = cards or {}
        self._names, self._say, self._memory, self._wait_s = tuple(names), say, memory, wait_s
        self._folder = folder or locks()
        self._waits = f"pool-{hashlib.sha256(' '.join(sorted(names)).encode()).hexdigest()[:16]}"

    @contextlib.contextmanager
    def take(self, demand: Demand) -> Iterator[tuple[str, ...]]:
        """Hold the GPUs of a demand for the length of the context; wait until they are free and it is its turn.

        Raises MatrixError if the pool has fewer, they are not free after the longest wait, or the folder of the locks
        belongs to another user.
        """
        if demand.card and self._cards:  # a smaller GPU is used alone
            demand = replace(demand, card=min(demand.card, max(self._cards.values())))
        if demand.gpus > len(self._names):
            raise MatrixError("not enough GPUs", got=f"{len(self._names)}", expected=f"at least {demand.gpus}")
        made(self._folder)
        with contextlib.ExitStack() as pipes:
            yield self._held(demand, pipes)

    @contextlib.contextmanager
    def admit(self, demand: Demand, variables: Mapping[str, str]) -> Iterator[dict[str, str]]:
        """Hold the GPUs of a demand, and yield `variables` and the one that shows them.

        A supervisor enters it when the ranks of a job are ready (Admission), so that no GPU waits for an import. Raises
        LackError where there are none.
        """
        with contextlib.ExitStack() as gpus:
            try:
                names = gpus.enter_context(self.take(demand))
            except MatrixError as error:
                raise LackError(error.brief) from error
            yield {**variables, host.VISIBLE: ",".join(names)}

    def _held(self, demand: Demand, pipes: contextlib.ExitStack) -> tuple[str, ...]:
        """Wait for the GPUs of a demand; return those that are held until `pipes` is closed."""
        until = None if self._wait_s is None else time.monotonic() + self._wait_s
        announced = False
        with contextlib.ExitStack() as waits:
            with self._gate():  # so that no other claim has this time
                claim = GpuClaim(time.time_ns(), os.getpid(), demand, self._waits)
                waits.enter_context(claim.held(self._folder))
            while True:
                with contextlib.ExitStack() as opened:
                    with self._gate():
                        claims, ended = self._claims(opened)
                        if names := self._granted(claim, claims):
                            for name in names:
                                pipes.enter_context(replace(claim, target=name).held(self._folder))
                            return names
                    limit = None if until is None else until - time.monotonic()
                    if limit is not None and limit <= 0:
                        raise MatrixError(
                            "the GPUs are not free",
                            got=f"{self._holders(claims)} after {self._wait_s:g} s",
                            expected=f"{demand.gpus} of {len(self._names)} GPUs",
                            where=str(self._folder),
                        )
                    if not announced:
                        announced = True
                        self._say(f"waiting for {demand.gpus} of {len(self._names)} GPUs, {self._holders(claims)}")
                    ended.poll(None if limit is None else 1000 * limit)

    def _granted(self, mine: GpuClaim, claims: Sequence[GpuClaim]) -> tuple[str, ...]:
        """Return the GPUs that a waiting case gets now, () if it has to wait."""
        running = {holder.time: holder.demand for holder in claims if holder.target != self._waits}
        waiting = {waiter.time: waiter.demand for waiter in claims if waiter.target == self._waits}
        if mine.demand.card and self._cards:
            return self._part(mine, claims)
        targets = {claim.target for claim in claims}
        memory = self._memory and self._memory - sum(holder.memory for holder in running.values())
        free = Free(tuple(name for name in self._names if name not in targets), len(self._names), memory)
        granted = grants(list(waiting.values()), list(running.values()), free)
        return granted.get(list(waiting).index(mine.time), ())

    def _part(self, mine: GpuClaim, claims: Sequence[GpuClaim]) -> tuple[str, ...]:
        """Return the GPU of which a waiting case gets a part now, () if it has to wait.

        A case that waits for whole GPUs, and came before, is first.
        """
        ahead = [claim.demand for claim in claims if claim.target == self._waits and claim.time < mine.time]
        if not all(demand.card for demand in ahead):
            return ()
        cards = []
        for name, size in self._cards.items():
            parts = [claim.demand.card for claim in claims if claim.target == name]
            cards.append(Card(name, size - sum(parts) if all(parts) else 0, len(claims)))
        granted = shared([*ahead, mine.demand], cards).get(len(ahead))
        return (granted,) if granted else ()

    def _claims(self, opened: contextlib.ExitStack) -> tuple[list[GpuClaim], select.poll]:
        """Return the claims on these GPUs in the order of their arrival, and a poll that returns when one ends.

        It lasts until `opened` is closed. Later claims need none: what they take and return makes no case start. Claims
        of processes that have ended are removed.
        """
        claims, ended = list[GpuClaim](), select.poll()
        for path in sorted(self._folder.glob(f"{CLAIM}.*")):
            try:
                pipe = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0)
                opened.enter_context(pipe)
                if pipe.read(1) is not None:  # at its end: no process holds it open
                    path.unlink()
                elif (claim := GpuClaim.of(path.name)).target in (*self._names, self._waits):
                    claims.append(claim)
                    ended.register(pipe, 0)  # its end is reported without being asked for
            except FileNotFoundError:  # its process is removing it
                continue
            except (OSError, ValueError) as error:  # no pipe, or no name of a claim: whose GPUs it means is unknown
                raise unusable(path, error) from None
        return claims, ended

    def _holders(self, claims: Sequence[GpuClaim]) -> str:
        """Return which processes have the GPUs, if any."""
        processes = dict.fromkeys(str(claim.process) for claim in claims if claim.target != self._waits)
        holders = f"held by process {', '.join(processes)}" if processes else "free, and another case is next"
        return f"{holders} (locks: {self._folder})"

    @contextlib.contextmanager
    def _gate(self) -> Iterator[None]:
        """Hold the lock of the process that decides: a few ms."""
        path = self._folder / GATE
        try:
            file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600))
        except OSError as error:
            raise unusable(path, error) from None
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def pool_of(site: host.LocalSite, say: Callable[[str], None]) -> Pool:
    """Return the GPUs that this process may use."""
    gpus = site.offers(Level.GPU).gpus or ()
    names = [gpu.uuid for gpu in gpus]
    cards = {gpu.uuid: gpu.memory for gpu in gpus if gpu.memory and not gpu.exclusive}
    return Pool(names, say=say, memory=site.machine.memory, wait_s=wait_s(os.environ), cards=cards)


def unusable(path: Path, error: OSError | ValueError) -> MatrixError:
    """Return the error for a folder of locks, or a claim in it, that can't be used."""
    got = getattr(error, "strerror", None) or f"not a claim: {error}"
    return MatrixError("the GPU locks can't be used", where=str(path), got=got, fix=FIX)
