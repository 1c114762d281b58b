"""Stop a process in order: at the first SIGINT, SIGTERM or SIGHUP, and when the process that started it dies.

Only the first signal raises KeyboardInterrupt, so that later ones do not interrupt the clean-up: tox sends SIGINT
twice, and the terminal sends it once more.
"""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Final

from matrix.ground.errors import ExitStatus
from matrix.prove.execution.ranks.descendants import look
from matrix.read import kernel

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
HINT: Final = "MEGATRIX_HINT"  # a file of the outermost tox for the line that it prints last, when it is interrupted
CALLED: Final = "MEGATRIX_CALLED"  # the command that started the outermost tox, without the arguments


def _raise(number: int, frame: FrameType | None) -> None:
    for ignored in SIGNALS:
        signal.signal(ignored, signal.SIG_IGN)
    raise KeyboardInterrupt


def once(handler: Callable[[int, FrameType | None], None] = _raise) -> None:
    """Install the handler. Does nothing outside of the main thread; under nohup SIGHUP stays ignored."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number in SIGNALS:
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)
    kernel.follow(os.environ)


def once_in_tox(*, provisions: bool) -> None:
    """End this process, a tox, in order at the first signal; then print how to continue, and exit with 130.

    tox stops its commands at SIGINT alone, prints after them, and exits with 254. A tox that `provisions` runs another
    tox, which it would leave behind: it forwards every signal, and starts nothing more.
    """
    os.environ.setdefault(CALLED, called(sys.orig_argv, sys.argv[1:]))
    hint = None if HINT in os.environ else os.memfd_create("hint")
    if hint is not None:
        os.environ[HINT] = f"/proc/{os.getpid()}/fd/{hint}"
    interrupted = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        interrupted.set()
        commands = [pid for pid, parent in look().parents.items() if parent == os.getpid()] if provisions else []
        for pid in commands:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT)
        if not commands:
            _raise(number, frame)

    def refuse(event: str, arguments: object) -> None:
        if event == "subprocess.Popen" and interrupted.is_set():
            raise KeyboardInterrupt

    def end() -> None:
        if not interrupted.is_set():
            return
        with suppress(OSError):  # its reader has exited
            sys.stdout.flush()
        if hint is not None:
            again = f"interrupted; continue with: {os.environ[CALLED]} {shlex.join(sys.argv[1:])}"
            os.write(2, f"megatrix: {os.pread(hint, 2**20, 0).decode() or again}\n".encode())
        os._exit(ExitStatus.INTERRUPTED)

    once(handle)
    if provisions:
        sys.addaudithook(refuse)
    atexit.register(end)


def called(command: Sequence[str], arguments: Sequence[str]) -> str:
    """Return the start of a command line, which ends with `arguments`: `tox`, `python3 -m tox`, or with its path."""
    words = list(command[: len(command) - len(arguments)])
    script = Path(words[-1])  # the interpreter before it is that of its first line
    if script.name == script.stem == "tox" and script.parent.name:
        words = ["tox" if shutil.which("tox") == str(script) else str(script)]
    return shlex.join(words)


def leave_hint(hint: str) -> None:
    """Pass the last line of an interrupted command to the tox that the user started, if one did start it."""
    with suppress(OSError):  # it has ended
        if path := os.environ.get(HINT):
            Path(path).write_text(hint, encoding="utf-8")


class TimeLimitReached(KeyboardInterrupt):
    """The time limit of a run has passed: its processes stop as at a Ctrl-C."""


@contextmanager
def after(seconds: float | None) -> Iterator[None]:
    """Raise TimeLimitReached in the block after this time, None for never; only in the main thread."""

    def end(number: int, frame: FrameType | None) -> None:
        raise TimeLimitReached

    if seconds is None:
        yield
        return
    previous = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
