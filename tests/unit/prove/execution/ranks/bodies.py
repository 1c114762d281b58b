"""Bodies of ranks for the tests of the supervisor: correct ones and faults. No torch."""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import importlib
import importlib.util
import multiprocessing
import multiprocessing.util
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from matrix.kit import absent_packages
from matrix.kit.rank import LackError, Rank

FOREVER = 3600.0  # s


def describe(rank: Rank, **kwargs: Any) -> dict[str, Any]:
    """Return the properties of this process."""
    return {
        "rank": rank.rank,
        "world_size": rank.world_size,
        "device": rank.device,
        "init_method": rank.init_method,
        "workdir": str(rank.workdir),
        "workdir_is_there": rank.workdir.is_dir(),
        "kwargs": kwargs,
        "environment": dict(os.environ),
        "path": sys.path,
        "argv": sys.argv,
        "modules": sorted(sys.modules),
        "session": os.getsid(0),
        "group": os.getpgid(0),
        "pid": os.getpid(),
        "parent": os.getppid(),
        "stdin": sys.stdin.read(),
        "start_method": multiprocessing.get_start_method(allow_none=True),
        "core_limit": resource.getrlimit(resource.RLIMIT_CORE)[0],
        "oom_score_adj": int(Path("/proc/self/oom_score_adj").read_text()),
        "main": getattr(sys.modules["__main__"], "__file__", None),
        "tools": {name: shutil.which(name) for name in ("nvcc", "ninja", "c++")},
        "flags": {"optimize": sys.flags.optimize, "warnoptions": list(sys.warnoptions)},
    }


def find(rank: Rank, name: str) -> bool:
    """Return whether a module is present, by both checks that upstream uses."""
    present = importlib.util.find_spec(name) is not None
    try:
        importlib.import_module(name)
    except ImportError:
        return present
    return True


def find_stand_in(rank: Rank, name: str) -> bool:
    """Return whether an absent module has a stand-in."""
    absent_packages.install([name])
    return type(importlib.import_module(name)) is absent_packages.AbsentModule


def nothing(rank: Rank) -> None:
    """Return at once."""


def lack_beside_a_waiting_peer(rank: Rank) -> None:
    if rank.rank == 1:
        raise LackError("needs a CUDA device")
    wait_forever(rank)


def leave_a_mark(rank: Rank) -> None:
    """Write to the log that the body ran."""
    sys.stdout.write("the body ran\n")


def fill_memory(rank: Rank) -> None:
    """Take 256 MiB and write to every page."""
    bytearray(2**28)[:: 2**12] = b"x" * 2**16


def size_of_shm(rank: Rank) -> int:
    """Make a file in /dev/shm and return its size in bytes."""
    Path("/dev/shm/rank-was-here").touch()
    found = os.statvfs("/dev/shm")
    return found.f_blocks * found.f_frsize


def meet(rank: Rank) -> int:
    """Make a file in the shared folder and wait for the files of all ranks."""
    (rank.workdir / str(rank.rank)).touch()
    while len(list(rank.workdir.iterdir())) < rank.world_size:
        time.sleep(0.01)
    return rank.rank


def wait_forever(rank: Rank) -> NoReturn:
    """Wait like a peer for a message that never arrives."""
    while True:
        time.sleep(FOREVER)


def raise_beside_waiting_peers(rank: Rank) -> None:
    if rank.rank == 0:
        try:
            raise KeyError("the root")
        except KeyError as error:
            raise RuntimeError("the consequence") from error
    wait_forever(rank)


def raise_base_exception(rank: Rank) -> NoReturn:
    """Raise a BaseException, like torch's CheckpointException."""
    raise BaseException("not an Exception")


def segfault(rank: Rank) -> None:
    """Crash the last rank only."""
    if rank.rank == rank.world_size - 1:
        faulthandler._sigsegv()  # type: ignore[attr-defined]  # made for tests


def segfault_as_peer_complains(rank: Rank, folder: str) -> None:
    """Make rank 0 raise first, like a peer whose socket closed before the crash was seen."""
    raised = Path(folder, "raised")
    if rank.rank == 0:
        raised.touch()
        raise RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:48213")
    while not raised.exists():
        time.sleep(0.01)
    faulthandler._sigsegv()  # type: ignore[attr-defined]


def abort(rank: Rank) -> None:
    os.abort()


def leave(rank: Rank, status: int) -> None:
    """Exit without cleanup, like C code; Open MPI exits with 6."""
    os._exit(status)


def leave_politely(rank: Rank) -> None:
    sys.exit(0)


def kill_itself(rank: Rank) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def crash_after_return(rank: Rank) -> None:
    """Return, then crash as a destructor would."""
    multiprocessing.util.Finalize(None, faulthandler._sigsegv, exitpriority=0)  # type: ignore[attr-defined]  # made for tests


def straggle(rank: Rank) -> None:
    """Hang in Python on rank 1; the others finish."""
    if rank.rank == 1:
        wait_forever(rank)


def hang_after_return(rank: Rank) -> None:
    threading.Thread(target=wait_forever, args=(rank,)).start()


def hang_deaf(rank: Rank) -> None:
    """Hang in C with every signal blocked that can be."""
    signal.pthread_sigmask(signal.SIG_SETMASK, range(1, signal.NSIG))
    ctypes.CDLL(None).pause()


def hang_stubborn(rank: Rank) -> NoReturn:
    """Hang and ignore SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    wait_forever(rank)


def wait_for_stuck_fork(rank: Rank) -> None:
    """Wait for a forked process that hangs, as megatron-core 0.7 does for its Manager."""
    pid = os.fork()
    if pid == 0:
        stick()
    os.waitpid(pid, 0)


def stick() -> None:
    signal.pause()
    os._exit(0)


def hang_with_child(rank: Rank) -> NoReturn:
    subprocess.Popen(["/bin/sleep", str(FOREVER)])
    wait_forever(rank)


def take_memory(rank: Rank) -> int:
    return len(bytearray(2**29))


def take_memory_in_c(rank: Rank) -> None:
    """Abort like a C++ library without memory."""
    os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n")
    os.abort()


def write_a_long_log(rank: Rank, size: int) -> None:
    os.write(1, b"the beginning\n")
    block = b"0123456789abcde\n" * 2**16
    for _ in range(size // len(block)):
        os.write(1, block)
    os.write(1, b"the end\n")


def write_bytes(rank: Rank, text: str) -> None:
    os.write(1, bytes.fromhex(text))


def leave_children(rank: Rank) -> None:
    """Leave a child, a daemonized grandchild and its child, all started; none ends with this process."""
    started, starting = os.pipe()
    subprocess.Popen(["/bin/sleep", str(FOREVER)])
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.setsid()
            subprocess.Popen(["/bin/sleep", str(FOREVER)], start_new_session=True)
            os.write(starting, b"x")
            time.sleep(FOREVER)
        os._exit(0)
    os.read(started, 1)


def leave_manager(rank: Rank) -> None:
    """Leave a Manager process, as megatron-core's save does."""
    manager = multiprocessing.Manager()
    manager.list()
    sys.stdout.flush()
    os._exit(0)


def leave_semaphore(rank: Rank) -> NoReturn:
    """Leave a named semaphore, which multiprocessing's resource tracker tracks."""
    kept = multiprocessing.get_context("spawn").Lock()
    name: str = kept._semlock.name  # type: ignore[attr-defined]  # no public attribute has it
    os.write(1, f"semaphore {name}\n".encode())
    os._exit(0)


def use_multiprocessing(rank: Rank, method: str) -> int:
    """Start children of its own."""
    with multiprocessing.get_context(method).Pool(2) as pool:
        return sum(pool.map(abs, range(-3, 3)))


def return_value(rank: Rank, size: int) -> Any:
    return "x" * size if size else object()


def kill_server(rank: Rank) -> NoReturn:
    meet(rank)
    os.kill(os.getppid(), signal.SIGKILL)
    wait_forever(rank)


def kill_server_of_large_ranks(rank: Rank, folder: str) -> NoReturn:
    """Kill the forkserver of ranks whose memory takes the kernel time to free; name files in `folder` by their pids."""
    memory = b"x" * 2**29
    (Path(folder) / str(os.getpid())).write_text(str(len(memory)))
    kill_server(rank)


def leave_children_and_wait(rank: Rank) -> NoReturn:
    """Leave children, report readiness and wait."""
    leave_children(rank)
    os.write(1, b"ready\n")
    wait_forever(rank)


def leave_stubborn_children_and_wait(rank: Rank) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    leave_children_and_wait(rank)


def wait_for_sigterm(rank: Rank) -> NoReturn:
    """Clean up at SIGTERM."""

    def leave(*_: object) -> NoReturn:
        os.write(1, b"cleaned up\n")
        os._exit(0)

    signal.signal(signal.SIGTERM, leave)
    os.write(1, b"ready\n")
    wait_forever(rank)


def flood(rank: Rank) -> NoReturn:
    os.write(1, b"ready\n")
    block = b"0123456789abcde\n" * 2**16
    while True:
        os.write(1, block)


def segfault_beside_waiting_peers(rank: Rank) -> None:
    """Crash rank 1 while the others wait."""
    meet(rank)
    if rank.rank == 1:
        faulthandler._sigsegv()  # type: ignore[attr-defined]
    wait_forever(rank)


def kill_mpirun(rank: Rank) -> NoReturn:
    """Kill the mpirun above the shim of rank 0."""
    meet(rank)
    if rank.rank == 0:
        shim = os.getppid()
        above = Path(f"/proc/{shim}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1]
        os.kill(int(above), signal.SIGKILL)
    wait_forever(rank)


def leave_at_exit(rank: Rank, how: str) -> None:
    """Register an exit handler that sleeps for ever ("hang"), ends the process with status 3 ("exit") or prints."""
    ends = {
        "hang": lambda: time.sleep(FOREVER),
        "exit": lambda: os._exit(3),
        "print": lambda: sys.stdout.write("at exit"),
    }
    atexit.register(ends[how])


def run_source(rank: Rank, source: str) -> None:
    """Run Python source as the body."""
    exec(source, {"__name__": "body"})


def write_report(rank: Rank, line: str) -> None:
    """Write a line to the report pipe, as a body that writes to any open descriptor may."""
    os.write(sys._getframe(1).f_locals["result"], line.encode() + b"\n")


def remove_shared_folder(rank: Rank) -> None:
    shutil.rmtree(rank.workdir.parents[1])


def hang_without_a_handler(rank: Rank) -> NoReturn:
    """Wait after SIGUSR1's handler was replaced by the default action, as after an exec."""
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    wait_forever(rank)


def say_and_raise(rank: Rank, words: str) -> NoReturn:
    """Print a text, and raise it."""
    sys.stdout.write(f"{words}\n")
    raise ValueError(words)


def start_nccl(rank: Rank, waits: Sequence[int] = ()) -> None:
    """Start a communicator of the library that is loaded; then wait in some ranks."""
    ctypes.CDLL("libnccl.so.2", mode=os.RTLD_NOW | os.RTLD_NOLOAD).ncclCommInitRank(rank.world_size, rank.rank)
    if rank.rank in waits:
        time.sleep(FOREVER)


def refused(rank: Rank, message: str) -> None:
    """Raise as CUDA does."""
    raise RuntimeError(f"CUDA error: {message}")
