"""Requests to the Linux kernel that Python >= 3.10 has no function for: prctl(2), unshare(2), mount(2)."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Mapping
from typing import Final

PARENT: Final = "MEGATRIX_PARENT"  # the pid of the process that starts another one and is to be followed
PR_SET_PDEATHSIG: Final = 1  # <linux/prctl.h>
PR_SET_CHILD_SUBREAPER: Final = 36
CLONE_NEWNS: Final = 0x20000  # <linux/sched.h>
MS_REC: Final = 0x4000  # <linux/mount.h>
MS_PRIVATE: Final = 1 << 18


def die_with_parent(parent: int) -> None:
    """Kill this process when its parent process `parent` ends; exit now if it has already ended."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def follow(environ: Mapping[str, str], number: int = signal.SIGTERM) -> None:
    """Send a signal to this process when the process dies that started it with $MEGATRIX_PARENT, its pid.

    A shell or a job of nohup does not set the variable: what it started outlives it.
    """
    parent = environ.get(PARENT, "")
    if parent == str(os.getppid()):
        _prctl(PR_SET_PDEATHSIG, number)
        if parent != str(os.getppid()):  # it died meanwhile
            os.kill(os.getpid(), number)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, including daemons that left their session."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def private_shm(size: int) -> None:
    """Give this process and its future children a private /dev/shm of `size` bytes.

    Raises OSError without CAP_SYS_ADMIN, which root has, but not in most containers.
    """
    _call("unshare", CLONE_NEWNS)
    _call(
        "mount", b"none", b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None
    )  # otherwise the whole machine gets it
    _call("mount", b"tmpfs", b"/dev/shm", b"tmpfs", ctypes.c_ulong(0), f"size={size}".encode())


def _prctl(option: int, value: int) -> None:
    _call("prctl", option, ctypes.c_ulong(value), 0, 0, 0)


def _call(name: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
