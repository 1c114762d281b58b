"""Requests to the Linux kernel that Python >= 3.10 has no function for: prctl(2), unshare(2), mount(2)."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Final

PR_SET_PDEATHSIG: Final = 1  # <linux/prctl.h>
PR_SET_CHILD_SUBREAPER: Final = 36
CLONE_NEWNS: Final = 0x20000  # <linux/sched.h>
MS_REC: Final = 0x4000  # <linux/mount.h>
MS_PRIVATE: Final = 1 << 18


def die_with_parent(parent: int) -> None:
    """Have this process killed when the process `parent`, which forked it, ends; end now if it has ended already."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, daemons that left their session included."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def private_shm(size: int) -> None:
    """Give this process, and what it starts from now on, a /dev/shm of `size` bytes of its own.

    Raises OSError: it needs CAP_SYS_ADMIN, which root has, and which containers mostly take away.
    """
    _call("unshare", CLONE_NEWNS)
    _call("mount", b"none", b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None)  # else the whole machine has it
    _call("mount", b"tmpfs", b"/dev/shm", b"tmpfs", ctypes.c_ulong(0), f"size={size}".encode())


def _prctl(option: int, value: int) -> None:
    _call("prctl", option, ctypes.c_ulong(value), 0, 0, 0)


def _call(name: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
