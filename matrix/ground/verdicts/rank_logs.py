"""The ranks of a job's logs: by the paths of the files, by their stacks, and what the lines show of each.

From collectives, stacks (as faulthandler and py-spy print them) and errors follows why ranks wait.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Final

from matrix.ground.verdicts.collectives import (
    CollectiveReport,
    Position,
    Standstill,
    grouped,
    name_all,
    odd_ones,
    reports_in,
    standstills,
    stated,
    verb_phrase,
)
from matrix.ground.verdicts.outcome import Frame

FRAMES: Final = 200  # kept of one stack, the innermost; faulthandler prints 100
MAIN: Final = "MainThread"
# A tag before the line may take one of its spaces.
# faulthandler: 'Current thread 0x00007f... (most recent call first):', with the thread's name since Python 3.14.
_THREAD: Final = re.compile(r"^(?P<current>Current t|T)hread 0x[0-9a-f]{1,16}\b.{0,99}\(most recent call first\):$")
_FRAME: Final = re.compile(r'^ {0,2}File "(?P<file>[^"]*)", line (?P<line>\d{1,9}|\?\?\?) in (?P<function>.*)$')
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


RANKS: Final = 16_384  # ranks of which facts are kept, so that a log of any text takes bounded memory
REPORTS: Final = 65_536  # lines of watchdogs that are kept
# What launchers write before the lines of a rank: torch itself and mpirun its rank, srun that of its task, which may be
# torchrun of a node, torchrun a local rank.
_RANK: Final = re.compile(r"\[rank(\d+)\]:|\[\d+,(\d+)\]<std")
_TASK: Final = re.compile(r"(?:^|:)(\d+):")
_LOCAL: Final = re.compile(r"\[default(\d+)\]:")


def rank_of(tags: str, log_rank: str = "") -> str:
    """Return the rank that a line's tags name, or else the rank of its file, "" where neither is known.

    A local rank of a task is named by both, "1/0".
    """
    if rank := _RANK.search(tags):
        return rank[1] or rank[2]
    task, local = _TASK.search(tags), _LOCAL.search(tags)
    if log_rank or not local:
        return log_rank or (task[1] if task else "")
    return f"{task[1]}/{local[1]}" if task else local[1]


class RankFacts:
    """Collects the facts of the ranks of one log, or of the logs of several ranks."""

    def __init__(self) -> None:
        self._ranks: dict[str, StackReader] = {}
        self._reports: list[CollectiveReport] = []
        self._stated: dict[tuple[str, tuple[str, ...]], Standstill] = {}
        self._waited: dict[str, tuple[int, Stand]] = {}
        self._failed: dict[str, tuple[int, str]] = {}
        self._rank, self._tagged, self._are_local = "", set[str](), False

    def start(self, rank: str) -> None:
        """Start the log of a rank, "" for one of several ranks."""
        self._settle_rank()
        self._rank = rank
        self._tagged.clear()
        if rank:
            self.add_rank(rank)

    def _settle_rank(self) -> None:
        """Give the facts of a log to the rank that its lines are tagged with: the log may be named by a local rank."""
        if not self._rank or len(self._tagged) != 1:
            return
        (rank,) = self._tagged
        self.add_rank(rank).stacks.update(self._ranks.pop(self._rank).finished())
        if self._rank in self._waited:
            self._waited.setdefault(rank, self._waited.pop(self._rank))
        if self._rank in self._failed:
            self._failed.setdefault(rank, self._failed.pop(self._rank))

    def add_rank(self, rank: str) -> StackReader:
        """Add a rank of which a line was read, and return what reads its stacks."""
        if rank not in self._ranks and len(self._ranks) < RANKS:
            self._ranks[rank] = StackReader()
        return self._ranks.get(rank) or StackReader()

    def take(self, line: int, text: str, rank: str) -> None:
        """Process one line of a rank ("": not known which), without its prefix."""
        self.add_rank(rank).take(line, text)
        if rank != self._rank:
            self._tagged.add(rank)
        reports = [*reports_in(line, text, rank)] if len(self._reports) < REPORTS else []
        self._reports += reports
        self._are_local |= any(report.shows_local(rank) for report in reports)
        for standstill in stated(line, text, rank):
            self._stated.setdefault((standstill.text, standstill.ranks), standstill)

    def add_error(self, line: int, rank: str, what: str, frames: tuple[Frame, ...], *, follows: bool) -> None:
        """Add an exception or crash of a rank; `follows`: the rank waited for another one in vain, or lost it."""
        stand = stand_of(frames[::-1])
        if follows and stand and rank:
            self._waited.setdefault(rank, (line, stand))
        elif not follows and rank:
            self._failed.setdefault(rank, (line, what))

    def standstills(self, root_rank: int | None = None) -> list[Standstill]:
        """Return why ranks wait, what names ranks first. `root_rank` is the one that the launcher saw fail first."""
        self._settle_rank()
        reports = [report.by_number for report in self._reports if report.group] if self._are_local else self._reports
        answers = [*self._stated.values(), *standstills(reports, self._numbered()), *self._by_stacks(root_rank)]
        order = list(Position)
        return sorted(answers, key=lambda standstill: (order.index(standstill.position), standstill.line))

    def _numbered(self) -> list[str]:
        """Return the ranks of the job of which the log has lines: none where its tags are local ranks."""
        return [] if self._are_local else [rank for rank in self._ranks if rank.isdigit()]

    def _by_stacks(self, root_rank: int | None) -> Iterator[Standstill]:
        """Yield how the ranks stand to each other by their stacks, or else by the errors of those that waited."""
        failed = [rank for rank in self._failed if rank not in self._waited]
        if len(stacks := self._stacks()) > 1 and (by_stacks := standing(stacks)):
            yield by_stacks
        elif self._waited and failed:
            line, what = min(self._failed[rank] for rank in failed)
            waits = grouped({rank: stand for rank, (_, stand) in self._waited.items()}, str)
            waited = "; ".join(f"{name_all(ranks)} in {stand}" for stand, ranks in waits.items())
            yield Standstill(
                Position.FAILED, tuple(failed), f"{name_all(failed)}: {what}; waited for it: {waited}", line
            )
        elif self._waited:
            silent = [rank for rank in self._numbered() if rank not in self._waited]
            silent = [str(root_rank)] if str(root_rank) in silent else silent
            if by_errors := standing(self._waited, silent):
                yield by_errors

    def _stacks(self) -> dict[str, tuple[int, Stand]]:
        """Return the stack of each rank, or process where its rank is not known; of a rank's processes, the first."""
        stacks: dict[str, tuple[int, Stand]] = {}
        for rank, reader in self._ranks.items():
            for process, stack in reader.finished().items():
                stacks.setdefault(process if process.isdigit() or not rank else rank, stack)
        stacks.pop("", None)  # of an unknown process: dumps of one process at several times look alike
        return stacks


# torchrun --log-dir: RUN/attempt_0/3/stderr.log, where 3 is a local rank.
_TORCHRUN: Final = re.compile(r"^(?P<run>.*?)attempt_(?P<attempt>\d+)/(?P<rank>\d+)/std(?:out|err)\.log(?:\.gz)?$")
_NAMED: Final = re.compile(r".*rank[_.-]?(\d+)", re.IGNORECASE)  # the last one of a path
_NUMBER: Final = re.compile(r"\d+")
# Names of logs, also those of batch systems ("job.o123", "%t" at the end). Of other files in the folder, such as
# checkpoints, nothing is read.
_LOG: Final = re.compile(r"^[^.](?:[^.]*|.*\.(?:log|out|err|txt|stacks|[oe]?\d+))(?:\.gz)?$")


@dataclass(frozen=True)
class RankLog:
    """A log in a folder: its path there, the rank that wrote it ("3", or a name of its own), "" where none is known."""

    path: str
    rank: str = ""


def is_log(path: str) -> bool:
    """Return whether a path within a folder has the name of a log."""
    return bool(_LOG.match(PurePath(path).name))


def rank_logs(paths: Iterable[str]) -> list[RankLog]:
    """Return the logs of the last attempt with their ranks, by rank; `paths` are relative, with slashes."""
    by_torchrun = {path: match for path in paths if (match := _TORCHRUN.match(path))}
    last = max((int(match["attempt"]) for match in by_torchrun.values()), default=0)
    runs = {match["run"] for match in by_torchrun.values()}
    logs: list[RankLog] = []
    others: list[str] = []
    for path in paths:
        if match := by_torchrun.get(path):
            # Local ranks of several nodes, or jobs, are not numbers of one job.
            rank = match["rank"] if len(runs) == 1 else f"{match['run']}{match['rank']}"
            logs += [RankLog(path, rank)] if int(match["attempt"]) == last else []
        elif named := _NAMED.match(path):
            logs.append(RankLog(path, str(int(named[1]))))
        else:
            others.append(path)
    return sorted([*logs, *_by_numbers(others)], key=lambda log: (not log.rank.isdigit(), log.rank.zfill(8), log.path))


def _by_numbers(paths: Sequence[str]) -> list[RankLog]:
    """Return logs whose paths differ in numbers: the last that differs is the rank, if these count from 0 on."""
    alike: Mapping[str, list[str]] = defaultdict(list)
    for path in paths:
        alike[_NUMBER.sub("#", path)].append(path)
    logs: list[RankLog] = []
    for group in alike.values():
        columns = list(zip(*(_NUMBER.findall(path) for path in group), strict=True))
        varying = [column for column in columns if len(set(column)) > 1]
        numbers = [int(number) for number in varying[-1]] if varying else []
        if sorted(numbers) == list(range(len(group))):
            logs += [RankLog(path, str(number)) for path, number in zip(group, numbers, strict=True)]
        elif len(group) > 1:
            logs += [RankLog(path, PurePath(path).name) for path in group]
        else:
            logs += [RankLog(path) for path in group]
    return logs
