"""Stacks of ranks in a log, as faulthandler and py-spy print them, and where the ranks stand to each other by them."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Final

from matrix.ground.verdicts.collectives import Position, Standstill, grouped, odd_ones, verb_phrase
from matrix.ground.verdicts.outcome import Frame

FRAMES: Final = 200  # kept of one stack, the innermost; faulthandler prints 100
MAIN: Final = "MainThread"
# A tag before the line may take one of its spaces.
# faulthandler: 'Current thread 0x00007f... (most recent call first):', with the thread's name since Python 3.14.
_THREAD: Final = re.compile(r"^(?P<current>Current t|T)hread 0x[0-9a-f]+.*\(most recent call first\):$")
_FRAME: Final = re.compile(r'^ {0,2}File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)$')
# What precedes a dump of all threads: dump_traceback_later's line. A fatal error is a crash (crash.py).
_START: Final = re.compile(r"^Timeout \(\d+:\d\d:\d\d(?:\.\d+)?\)!$")
_FATAL: Final = "Fatal Python error: "
# py-spy dump: a line for the process, then its threads, the main one with its name.
_PROCESS: Final = re.compile(r"^Process (?P<pid>\d+): ")
_DUMP: Final = re.compile(r"\s*Process \d+: .*\r?\nPython v\d")
_SPIED: Final = re.compile(r'^Thread (?:\d+|0x[0-9A-F]+) \((?:active|idle)[^)]*\)(?:: "(?P<name>.*)")?$')
_SPIED_FRAME: Final = re.compile(r"^ {3,4}(?P<function>\S.*) \((?P<file>[^()]+?)(?::(?P<line>\d+))?\)$")
_FIRST: Final = frozenset("TCPFr")  # characters of the lines above and below: most lines have another one
# A heading of this project's own reports of stacks.
_HEADING: Final = re.compile(r"^rank (\d+):$")
_LIBRARY: Final = re.compile(
    r"(?:^|/(?:site|dist)-packages/|/pytorch/)(?:torch|numpy)/|/lib(?:64)?/python3[^/]*/(?!(?:site|dist)-packages/)|^<"
)
_COLLECTIVES: Final = re.compile(r"(?:^|/)torch/distributed/\w+\.py$")


@dataclass(frozen=True)
class Stand:
    """Where a rank stands: the function of torch.distributed ("": none) and the innermost frame that is no library's.

    Without such a frame, `own` is the innermost frame of all.
    """

    collective: str
    own: Frame

    def __str__(self) -> str:
        position = f"{self.own.function} ({PurePath(self.own.file).name}:{self.own.line})"
        return f"{self.collective}, called in {position}" if self.collective else position


def stand_of(frames: Sequence[Frame]) -> Stand | None:
    """Return where a stack stands; `frames` run innermost first. None for a stack without frames."""
    own = next((index for index, frame in enumerate(frames) if not _is_library(frame.file)), None)
    called = frames[:own] if own is not None else frames
    functions = [frame.function for frame in called if _COLLECTIVES.search(frame.file)]
    collectives = [function for function in functions if not function.endswith("wrapper")]  # of c10d_logger.py
    return Stand(collectives[-1] if collectives else "", frames[own or 0]) if frames else None


def _is_library(file: str) -> bool:
    # py-spy leaves out the folder of a module of the standard library, and prints the library of a native frame.
    is_standard = "/" not in file and file.removesuffix(".py") in sys.stdlib_module_names
    return is_standard or not file.endswith(".py") or bool(_LIBRARY.search(file))


@dataclass
class _Dump:
    """The stack of one thread: the line of its heading, its name, its frames, innermost first."""

    line: int
    is_main: bool
    frames: list[Frame] = field(default_factory=list)


class StackReader:
    """Reads the lines of one writer; `stacks` are those of the main threads, the latest of each process."""

    def __init__(self) -> None:
        self.stacks: dict[str, tuple[int, Stand]] = {}
        self._process, self._open, self._is_crash = "", False, False
        self._threads: list[_Dump] = []

    def take(self, line: int, text: str) -> None:
        """Process one line without its prefix."""
        if self._open and (frame := _FRAME.match(text) or _SPIED_FRAME.match(text)):
            number = frame["line"] or "0"
            if len(self._threads[-1].frames) < FRAMES:
                position = int(number) if number.isdigit() else 0
                self._threads[-1].frames.append(Frame(frame["file"], position, frame["function"]))
            return
        self._open = False
        if text[:1] not in _FIRST:
            return
        if thread := _THREAD.match(text):
            self._threads.append(_Dump(line, thread["current"] != "T"))
            self._open = True
        elif spied := _SPIED.match(text):
            self._threads.append(_Dump(line, spied["name"] == MAIN))
            self._open = True
        elif (process := _PROCESS.match(text)) and not self._process.isdigit():
            self._start(f"process {process['pid']}")
        elif heading := _HEADING.match(text):
            self._start(heading[1])
        elif _START.match(text):
            self._start(self._process)
        elif text.startswith(_FATAL):
            self._start("", is_crash=True)

    def _start(self, process: str, *, is_crash: bool = False) -> None:
        self.close()
        self._process, self._is_crash = process, is_crash

    def finished(self) -> dict[str, tuple[int, Stand]]:
        """Return the stacks at the end of the log."""
        self.close()
        return self.stacks

    def close(self) -> None:
        """Keep the main thread of the dump that has ended: the one named so, or faulthandler's last."""
        mains = [thread for thread in self._threads if thread.is_main] or self._threads[-1:]
        for thread in [] if self._is_crash else mains[:1]:
            if stand := stand_of(thread.frames):
                self.stacks[self._process] = (thread.line, stand)
        self._threads, self._open = [], False


def is_dump(text: str) -> bool:
    """Return whether a log begins as a dump of py-spy: no other line of it has a word that is searched for."""
    return bool(_DUMP.match(text))


def stand_in(text: str) -> Stand | None:
    """Return where the process of a dump stands, the first of several; None for a text without stacks."""
    reader = StackReader()
    for line in text.splitlines():
        reader.take(0, line)
    return next((stand for _, stand in reader.finished().values()), None)


def standing(stacks: Mapping[str, tuple[int, Stand]], silent: Sequence[str] = ()) -> Standstill | None:
    """Return how ranks stand to each other by their stacks: by rank, the line of each stack and where it stands.

    `silent` are ranks whose stack is not known while others are in a collective. None for a single rank.
    """
    stands = {rank: stand for rank, (_, stand) in stacks.items()}
    if len(stands) + len(silent) < 2 or not stands:
        return None
    line = min(line for line, _ in stacks.values())
    in_collectives = {rank: stand for rank, stand in stands.items() if stand.collective}
    elsewhere = {rank: stand for rank, stand in stands.items() if not stand.collective}
    described = "; ".join(f"{verb_phrase(ranks, 'stand')} in {stand}" for stand, ranks in grouped(stands, str).items())
    if in_collectives and elsewhere:
        return Standstill(Position.BEHIND, tuple(elsewhere), described, line)
    groups = grouped(stands, str)
    if len(groups) == 1:
        if not silent:
            return Standstill(Position.TOGETHER, (), described, line)
        missing = f"{verb_phrase(silent, 'report')} no stack and no error, {described}"
        position = Position.BEHIND if len(silent) == 1 and in_collectives else Position.WAITING
        return Standstill(position, tuple(silent), missing, line)
    # Without a collective, ranks that stand at many places just work; one alone is the odd one out.
    odd = odd_ones(groups.values())
    if not in_collectives and len(odd) != 1:
        return Standstill(Position.WAITING, (), described, line)
    return Standstill(Position.DIVERGED, tuple(odd), described, line)
