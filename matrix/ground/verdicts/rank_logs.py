"""The ranks of the logs in a folder, by their paths, and the logs of the job's last attempt."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

# torchrun --log-dir: RUN/attempt_0/3/stderr.log, where 3 is a local rank.
_TORCHRUN: Final = re.compile(r"^(?P<run>.*?)attempt_(?P<attempt>\d+)/(?P<rank>\d+)/std(?:out|err)\.log(?:\.gz)?$")
_NAMED: Final = re.compile(r"rank[_.-]?(\d+)(?!.*rank[_.-]?\d)", re.IGNORECASE)
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
        elif named := _NAMED.search(path):
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
