"""What ranks do in the tests of the supervisor: well-behaved bodies and faults. No torch."""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import importlib.util
import multiprocessing
import multiprocessing.util
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

from matrix.kit import absent_packages
from matrix.kit.rank import LackError, Rank

FOREVER = 3600.0  # s


def describe(rank: Rank, **kwargs: Any) -> dict[str, Any]:
    """Tell what this process looks like from the inside."""
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
        "stdin": sys.stdin.read(),
        "start_method": multiprocessing.get_start_method(allow_none=True),
        "core_limit": resource.getrlimit(resource.RLIMIT_CORE)[0],
        "oom_score_adj": int(Path("/proc/self/oom_score_adj").read_text()),
        "main": getattr(sys.modules["__main__"], "__file__", None),
    }


def find(rank: Rank, name: str) -> bool:
    """Say whether a module is there, by both ways in which upstream asks."""
    there = importlib.util.find_spec(name) is not None
    try:
        importlib.import_module(name)
    except ImportError:
        return there
    return True


def find_stand_in(rank: Rank, name: str) -> bool:
    """Say whether there is a stand-in for a module that is absent."""
    absent_packages.install([name])
    return type(importlib.import_module(name)) is absent_packages.AbsentModule


def nothing(rank: Rank) -> None:
    """Do the least."""


def lack_beside_a_waiting_peer(rank: Rank) -> None:
    if rank.rank == 1:
        raise LackError("needs a CUDA device")
    wait_forever(rank)


def leave_a_mark(rank: Rank) -> None:
    """Say on the log that the body ran."""
    sys.stdout.write("the body ran\n")


def fill_memory(rank: Rank) -> None:
    """Take 256 MiB and write to every page."""
    bytearray(2**28)[:: 2**12] = b"x" * 2**16


def size_of_shm(rank: Rank) -> int:
    """Leave a mark in /dev/shm; return its size in bytes."""
    Path("/dev/shm/rank-was-here").touch()
    told = os.statvfs("/dev/shm")
    return told.f_blocks * told.f_frsize


def meet(rank: Rank) -> int:
    """Leave a mark in the shared folder, wait for those of all ranks."""
    (rank.workdir / str(rank.rank)).touch()
    while len(list(rank.workdir.iterdir())) < rank.world_size:
        time.sleep(0.01)
    return rank.rank


def wait_forever(rank: Rank) -> NoReturn:
    """Be the peer that waits for a message that never comes."""
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
    """Raise as torch does: its CheckpointException is no Exception."""
    raise BaseException("not an Exception")


def segfault(rank: Rank) -> None:
    """Only the last rank: rank 0 is fine."""
    if rank.rank == rank.world_size - 1:
        faulthandler._sigsegv()  # type: ignore[attr-defined]  # made for tests


def segfault_as_peer_complains(rank: Rank, folder: str) -> None:
    """Let rank 0 complain first, as a peer may whose socket closed before the death was seen."""
    complained = Path(folder, "complained")
    if rank.rank == 0:
        complained.touch()
        raise RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:48213")
    while not complained.exists():
        time.sleep(0.01)
    faulthandler._sigsegv()  # type: ignore[attr-defined]


def abort(rank: Rank) -> None:
    os.abort()


def leave(rank: Rank, status: int) -> None:
    """Leave as C code does, and as Open MPI does with 6."""
    os._exit(status)


def leave_politely(rank: Rank) -> None:
    sys.exit(0)


def kill_itself(rank: Rank) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def crash_after_return(rank: Rank) -> None:
    """Return, then crash as a destructor would."""
    multiprocessing.util.Finalize(None, faulthandler._sigsegv, exitpriority=0)  # type: ignore[attr-defined]  # made for tests


def straggle(rank: Rank) -> None:
    """Rank 1 hangs in Python, the others finish."""
    if rank.rank == 1:
        wait_forever(rank)


def hang_after_return(rank: Rank) -> None:
    threading.Thread(target=wait_forever, args=(rank,)).start()


def hang_deaf(rank: Rank) -> None:
    """Hang in C, deaf to every signal that can be blocked."""
    signal.pthread_sigmask(signal.SIG_SETMASK, range(1, signal.NSIG))
    ctypes.CDLL(None).pause()


def hang_stubborn(rank: Rank) -> NoReturn:
    """Hang, and take SIGTERM for nothing."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    wait_forever(rank)


def wait_for_stuck_fork(rank: Rank) -> None:
    """Wait for a forked process that is stuck, as megatron-core 0.7 does for its Manager."""
    pid = os.fork()
    if pid == 0:
        stick()
    os.waitpid(pid, 0)


def stick() -> None:
    signal.pause()
    os._exit(0)


def hang_with_child(rank: Rank) -> NoReturn:
    subprocess.Popen(["sleep", str(FOREVER)])
    wait_forever(rank)


def take_memory(rank: Rank) -> int:
    return len(bytearray(2**29))


def take_memory_in_c(rank: Rank) -> None:
    """Fall as a C++ library falls that finds no memory."""
    os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n")
    os.abort()


def take_memory_in_cgroup(rank: Rank, cgroup: str) -> None:
    """Take more memory than the cgroup has, page by page, until the kernel kills this process."""
    Path(cgroup, "cgroup.procs").write_text(str(os.getpid()))
    held = []
    while True:
        held.append(b"x" * 2**20)


def write_a_gigabyte(rank: Rank) -> None:
    os.write(1, b"the beginning\n")
    block = b"0123456789abcde\n" * 2**16
    for _ in range(1024):
        os.write(1, block)
    os.write(1, b"the end\n")


def write_bytes(rank: Rank, text: str) -> None:
    os.write(1, bytes.fromhex(text))


def leave_children(rank: Rank) -> None:
    """Leave one child as it is, one that made itself a daemon, and its child: none dies with this process."""
    subprocess.Popen(["sleep", str(FOREVER)])
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.setsid()
            subprocess.Popen(["sleep", str(FOREVER)], start_new_session=True)
            time.sleep(FOREVER)
        os._exit(0)


def leave_manager(rank: Rank) -> None:
    """Do what megatron-core's save does: a Manager process, and an end that does not end it."""
    manager = multiprocessing.Manager()
    manager.list()
    sys.stdout.flush()
    os._exit(0)


def leave_semaphore(rank: Rank) -> NoReturn:
    """Have a named semaphore, which multiprocessing's resource tracker watches, and do not clear it away."""
    kept = multiprocessing.get_context("spawn").Lock()
    os._exit(0 if kept else 1)


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


def leave_children_and_wait(rank: Rank) -> NoReturn:
    """Be ready for anything to happen to the owner."""
    leave_children(rank)
    os.write(1, b"ready\n")
    wait_forever(rank)


def leave_stubborn_children_and_wait(rank: Rank) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    leave_children_and_wait(rank)


def wait_for_sigterm(rank: Rank) -> NoReturn:
    """Have something to clear away."""

    def leave(*_: object) -> NoReturn:
        os.write(1, b"cleared away\n")
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
    """Rank 1 dies of a signal while the others wait."""
    meet(rank)
    if rank.rank == 1:
        faulthandler._sigsegv()  # type: ignore[attr-defined]
    wait_forever(rank)


def kill_mpirun(rank: Rank) -> NoReturn:
    """Rank 0 kills the mpirun above its keeper; ranks and keepers are left to themselves."""
    meet(rank)
    if rank.rank == 0:
        keeper = os.getppid()
        above = Path(f"/proc/{keeper}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1]
        os.kill(int(above), signal.SIGKILL)
    wait_forever(rank)
