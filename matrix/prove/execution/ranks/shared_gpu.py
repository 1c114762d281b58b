"""A GPU that ranks share: what NCCL's log shows, outcomes that sharing causes, a daemon of MPS, access to itself.

NCCL's log is read while the folder of a job exists; only what it shows is kept, since it names hosts and addresses.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Final

from matrix.ground.cases.machine_requirements import Placement
from matrix.ground.catalog.distributions import nccl_sharing
from matrix.ground.catalog.failure import Expectation, Failure
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.outcome import Outcome, OutcomeKind
from matrix.ground.verdicts.planned import Kind, Lack
from matrix.kit.rank import LackError
from matrix.prove.execution.ranks.descendants import wait_for
from matrix.prove.provision.project import locked

# Lines of NCCL 2.30: "Channel 00 : 0[0] -> 1[0] via SHM/direct"; the start of a communicator, and its end.
TRANSPORT: Final = re.compile(r" via ([A-Z][\w.]*(?:/[\w.]+(?: pointer)?)*)")
START: Final = "Init START"
END: Final = "Init COMPLETE"
TRANSPORTS: Final = "NCCL transport"  # the name of the fact


@dataclass(frozen=True)
class NcclLog:
    """What NCCL's logs of a job show: the transports between its ranks, and the ranks in a start that has not ended."""

    transports: tuple[str, ...] = ()
    starting: frozenset[int] = frozenset()


def log_file(folder: Path, rank: int) -> str:
    """Return the value of NCCL_DEBUG_FILE: a file for each process of a rank."""
    return f"{folder}/nccl-{rank}.%p.log"


def read_log(folder: Path) -> NcclLog:
    """Return what the logs in the folder of a job show."""
    transports, starting = dict[str, None](), set[int]()
    for path in sorted(folder.glob("nccl-*.log")):
        text = path.read_text(errors="replace")
        transports.update(dict.fromkeys(TRANSPORT.findall(text)))
        if text.count(START) > text.count(END):
            starting.add(int(path.name.removeprefix("nccl-").partition(".")[0]))
    return NcclLog(tuple(transports), frozenset(starting))


def of_gpus(outcome: Outcome, log: NcclLog, *, shared: bool) -> Outcome:
    """Return the outcome of ranks on GPUs, with the facts of NCCL's log; unavailable where the GPU refused them."""
    if lack := lack_of(outcome, log, shared=shared):
        outcome = replace(outcome, kind=OutcomeKind.UNAVAILABLE, reason=lack.text, lacks=(lack,))
    return replace(outcome, resolved={TRANSPORTS: " and ".join(log.transports)} if log.transports else {})


def lack_of(outcome: Outcome, log: NcclLog, *, shared: bool) -> Lack | None:
    """Return why ranks could not use a GPU: it refused them, or NCCL's start did not end in any of those that wait.

    Where they do not share it over NCCL, only a GPU that is taken is a refusal.
    """
    if outcome.kind is OutcomeKind.HUNG:
        waiting = {end.rank for end in outcome.ranks if end.stopped or end.exit_code is None}
        if not waiting or not waiting <= log.starting:
            return None
        ranks = f"rank{'s' * (len(waiting) > 1)} {', '.join(map(str, sorted(waiting)))}"
        seconds = max(end.seconds for end in outcome.ranks)
        fix = "run it alone on the GPU, with the wheel of facts/nccl.toml; else one GPU for each rank"
        return Lack(Kind.NCCL_START, f"NCCL did not start in {seconds:.0f} s in {ranks}, which share a GPU: {fix}")
    text = "\n".join(raised.message for raised in outcome.chain)
    refusals = nccl_sharing().refusal if outcome.kind is OutcomeKind.RAISED else ()
    causes = (cause for cause in refusals if (shared or cause.taken) and re.search(cause.text, text))
    return next((Lack(Kind.GPUS if cause.taken else Kind.NCCL, f"{cause.why}: {cause.fix}") for cause in causes), None)


def variables_of(placement: Placement) -> dict[str, str]:
    """Return the variables of ranks that share a GPU over NCCL."""
    return nccl_sharing().of_ranks(mps=placement.mps, peers=placement.peers) if placement.nccl else {}


Granted = Mapping[str, str]  # the variables of ranks that have their GPUs


@contextlib.contextmanager
def admitted(
    admit: Callable[[Granted], contextlib.AbstractContextManager[Granted]], placement: Placement, folder: Path
) -> Iterator[Granted]:
    """Hold the GPUs of a case, and a daemon of MPS with its files in `folder` where ranks share them so.

    A daemon that someone else runs is not used: what it shows and how it ends is not known.
    """
    variables = variables_of(placement)
    if placement.each and not placement.mps and foreign():
        variables[PIPES] = str(folder / "no-mps")
    mps = daemon(folder, os.environ) if placement.mps else contextlib.nullcontext(dict[str, str]())
    with admit(variables) as granted, mps as found:
        yield {**granted, **found}


PIPES: Final = "CUDA_MPS_PIPE_DIRECTORY"
CONTROL: Final = "nvidia-cuda-mps-control"  # of the driver
NO_DAEMON: Final = "Cannot find MPS control daemon"  # printed by it, whatever its exit status
USUAL: Final = "/tmp/nvidia-mps"  # noqa: S108  (where every process of a user finds a daemon)
OWNER: Final = "owner"  # in the folder of a daemon: the file that its case locks
CONTROL_S: Final = 10.0  # s for the daemon to answer, and for its processes to end
CRASHES: Final = re.compile(r"(?i)illegal memory access|device-side assert|misaligned address|launch failure")


def may_crash(failure: Failure, expectation: Expectation) -> bool:
    """Return whether a case may end by a fault of the GPU or a signal: MPS then ends the other ranks with it."""
    return expectation is not Expectation.WORKS and any(
        signature.signal
        or signature.stack
        or signature.exit_code
        or CRASHES.search(f"{signature.message} {signature.log}")
        for signature in failure.signature
    )


@contextlib.contextmanager
def daemon(folder: Path, environ: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Run a private daemon of MPS with its files in `folder`, and yield the variable by which ranks find it.

    It ends with the context. One whose process was killed is ended by the next: nothing holds the lock in its folder.
    Raises LackError where it does not start, and where it ended meanwhile.
    """
    with contextlib.ExitStack() as ending:
        with locked(folder / "mps.lock"):
            for abandoned in filter(unowned, folder.glob("mps-*")):
                end(abandoned, environ)
            pipes = Path(tempfile.mkdtemp(prefix="mps-", dir=folder))
            fcntl.flock(ending.enter_context((pipes / OWNER).open("w")), fcntl.LOCK_EX)
            ending.callback(end, pipes, environ)
        control(pipes, environ, "-d")
        control(pipes, environ, ask="get_server_list")
        yield {PIPES: str(pipes)}
        try:
            control(pipes, environ, ask="get_server_list")
        except LackError as lack:
            raise LackError(f"the daemon of MPS ended while the case ran: {lack}") from None


def unowned(pipes: Path) -> bool:
    """Return whether no process holds the lock of a daemon's folder; a pid means nothing in another container."""
    try:
        with (pipes / OWNER).open("a") as owner:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, FileNotFoundError):  # it is in use, or its case has just ended
        return False
    return True


def control(pipes: Path, environ: Mapping[str, str], *options: str, ask: str = "") -> None:
    """Start a daemon, or send it a request. Raises LackError where the program fails, with what it printed."""
    variables = {**environ, PIPES: str(pipes), "CUDA_MPS_LOG_DIRECTORY": str(pipes)}
    printed = pipes / "printed"  # a file: the daemon keeps a pipe open
    try:
        with printed.open("w") as output:
            program = partial(subprocess.run, [CONTROL, *options], stdout=output, stderr=output)
            ended: object = program(input=f"{ask}\n", text=True, env=variables, timeout=CONTROL_S).returncode
    except FileNotFoundError:
        raise LackError(f"--mps needs {CONTROL} of NVIDIA's driver; none on PATH") from None
    except (OSError, subprocess.SubprocessError) as error:
        ended = error
    text = " ".join(printed.read_text(errors="replace").split())[-300:]
    if ended or NO_DAEMON in text:
        raise LackError(f"MPS: {text or ended}")


def end(pipes: Path, environ: Mapping[str, str]) -> None:
    """End the daemon of a folder and the server that it started, and remove the folder."""
    with contextlib.suppress(LackError):
        control(pipes, environ, ask="quit")
    wait_for(processes(pipes), CONTROL_S)
    for pid in processes(pipes):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(pipes, ignore_errors=True)


def processes(pipes: Path) -> list[int]:
    """Return the processes that use the daemon of a folder, by the variable in their environment."""
    mark, pids = f"{PIPES}={pipes}".encode(), list[int]()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            pids += [int(path.parent.name)] * (mark in path.read_bytes().split(b"\0"))
    return pids


@cache
def foreign() -> str:
    """Return the folder of a daemon of MPS that this project did not start, and that every process would use; or ""."""
    pipes = Path(os.environ.get(PIPES, USUAL))
    if not (pipes / "control").exists():
        return ""
    try:
        answer = subprocess.run(
            [CONTROL], input="get_server_list\n", text=True, capture_output=True, timeout=CONTROL_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return str(pipes)
    return "" if answer.returncode or NO_DAEMON in answer.stdout + answer.stderr else str(pipes)


PEER_ACCESS: Final = "int cudaDeviceCanAccessPeer(int *can, int gpu, int peer) { *can = 1; return 0; }\n"


def peer_access(folder: Path) -> Path:
    """Return a library in `folder` that answers for CUDA that a GPU has access to a peer; compile it if it is missing.

    CUDA denies a GPU access to itself, and Transformer Engine then refuses userbuffers. Memory of one GPU is shared
    between processes all the same (an H100, Transformer Engine 2.20.2). Raises MatrixError without a compiler.
    """
    library = folder / f"peer-access-{hashlib.sha256(PEER_ACCESS.encode()).hexdigest()[:12]}.so"
    if not library.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        making = library.with_name(f"{library.name}.{os.getpid()}")
        words = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(making)]
        try:
            subprocess.run(words, input=PEER_ACCESS, text=True, capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            got = getattr(error, "stderr", "") or error
            fix = "install a C compiler (Debian, Ubuntu: apt-get install gcc)"
            raise MatrixError("userbuffers on a shared GPU need a library that is compiled", got=got, fix=fix) from None
        making.rename(library)
    return library
