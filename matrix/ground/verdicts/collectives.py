"""Where ranks stand in their collectives, from what torch prints of them: who is behind, or who runs another one.

Read are the watchdog and the heartbeat monitor of ProcessGroupNCCL (torch 2.0 to 2.15), its desync report
(TORCH_NCCL_DESYNC_DEBUG), monitored barriers, the fingerprints of TORCH_DISTRIBUTED_DEBUG=DETAIL and gloo's check of
sizes. The formats are those of ProcessGroupNCCL.cpp, TraceUtils.h, ProcessGroupGloo.cpp, ProcessGroupWrapper.cpp and
gloo/transport/tcp/pair.cc.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

# torch prints the size of an operation that states none (COALESCED) as 2**64 - 1, and torch 2.3 a number that it never
# set as any number.
LARGEST: Final = 2**40
# Ranks call these with equal sizes of their inputs. Those of others (all-to-all, scatter) may differ.
EQUAL_SIZES: Final = frozenset(
    ("ALLREDUCE", "BROADCAST", "REDUCE", "ALLGATHER", "_ALLGATHER_BASE", "REDUCE_SCATTER", "_REDUCE_SCATTER_BASE")
)
# Two ranks call different ones of these together, and each rank has its own numbers.
POINT_TO_POINT: Final = frozenset(("SEND", "RECV", "COALESCED", "UNKNOWN"))
DEFAULT_GROUPS: Final = ("default_pg", "0")  # the name and the number of the group of all ranks

_GROUP: Final = re.compile(
    r"\[PG (?:ID \S+ )?(?:PG )?(?:GUID )?(?P<id>[^\s()]+) ?(?:\((?P<name>[^()]*)\))? Rank (?P<rank>\d+)\]"
)
_RANK: Final = re.compile(r"\[Rank (\d+)\]")
_MEMBER: Final = re.compile(r"number (\d+) of the group")
_WRITER: Final = re.compile(r"\[rank(\d+)\]:")  # also behind what Ray or a progress bar has written on the line
_WORK: Final = re.compile(
    r"WorkNCCL\(SeqNum=(?P<seq>\d{1,19}), OpType=(?P<op>\w{1,99})(?:, TensorShape=\[(?P<shape>[^\]]{0,999})\])?"
    r"(?:, NumelIn=(?P<numel>\d{1,20}), NumelOut=\d{1,20})?, Timeout\(ms\)="
)
_STATUS: Final = re.compile(
    r"(?:work(?: sequence id)?: (?P<seq>\d+).{0,20})?[Ll]ast enqueued (?:NCCL )?work: (?P<enqueued>-?\d+)"
)
_FINGERPRINT: Final = re.compile(
    r"Rank (?P<rank>\d{1,9}) is running collective: CollectiveFingerPrint\((?:SequenceNumber=(?P<seq>\d{1,19}), )?"
    r"OpType=(?P<op>\w{1,99})(?:, TensorShape=\[(?P<shape>[^\]]{0,999})\])?"
)


class Position(str, Enum):
    """How ranks that should run the same stand to each other."""

    FAILED = "failed"  # some failed, and the others waited for them
    BEHIND = "behind"  # some have not reached what the others wait in
    DIVERGED = "diverged"  # they run different collectives, or one with different sizes
    WAITING = "waiting"  # some wait, and nothing shows where the others are
    TOGETHER = "together"  # all wait in the same collective


@dataclass(frozen=True)
class Standstill:
    """Why ranks wait: `ranks` failed, are behind, or differ from the others. `line` is the first line that shows it.

    A rank is named by its number ("3"), or by what is known of it ("process 4711").
    """

    position: Position
    ranks: tuple[str, ...]
    text: str
    line: int


@dataclass(frozen=True)
class Operation:
    """An operation of a process group: its number there, its type, the size of its input ("": not stated)."""

    seq: int
    op: str
    size: str = ""

    def __str__(self) -> str:
        return f"{self.op} #{self.seq}" + (f" ({self.size})" if self.size else "")


@dataclass(frozen=True)
class CollectiveReport:
    """What one line states of one rank: the operation that it waits in, or the last one that it enqueued.

    `group` is the identity and the name of the process group, None where the line does not name it, `number` the rank
    within it.
    """

    line: int
    rank: str
    number: int
    group: tuple[str, str] | None = None
    work: Operation | None = None
    waits_in: int | None = None
    enqueued: int | None = None

    def shows_local(self, tag: str) -> bool:
        """Return whether the tag of the line is a local rank: the group of all ranks has another one."""
        return of_all_ranks(self.group) and bool(tag) and tag != self.rank

    @property
    def by_number(self) -> CollectiveReport:
        """Return the report with its rank named by the group, where the tag is a local rank."""
        return self if of_all_ranks(self.group) else replace(self, rank=_member(self.number))


def of_all_ranks(group: tuple[str, str] | None) -> bool:
    """Return whether a process group is that of all ranks, whose numbers are those of the job."""
    return bool(group and {*group} & {*DEFAULT_GROUPS})


def reports_in(line: int, text: str, rank: str = "") -> Iterator[CollectiveReport]:
    """Yield what a line states of ranks in their collectives. `rank` wrote it, "" where that is unknown."""
    for fingerprint in _FINGERPRINT.finditer(text) if "CollectiveFingerPrint" in text else ():
        work_of = _work(fingerprint)
        number_of = fingerprint["rank"]
        yield CollectiveReport(
            line, number_of, int(number_of), ("fingerprints", "a process group"), work_of, work_of.seq
        )
    if "Work" not in text and "work: " not in text:
        return
    group, writer = _GROUP.search(text), _RANK.search(text)
    work, status = _WORK.search(text), _STATUS.search(text)
    if not (group or writer) or not (work or (group and status)):
        return
    number = int(group["rank"] if group else writer[1] if writer else 0)
    waits_in = int(work["seq"]) if work else int(status["seq"]) if status and status["seq"] else None
    named = (group["id"], group["name"] or "") if group else None
    tag = None if of_all_ranks(named) else _WRITER.search(text)
    if of_all_ranks(named) or not (tag or rank):
        rank = str(number)  # the job's rank; a tag may be the local rank, as of `torchrun --role rank --tee 3`
    rank = tag[1] if tag else rank
    enqueued = int(status["enqueued"]) if status and int(status["enqueued"]) < LARGEST else None
    yield CollectiveReport(line, rank, number, named, _work(work) if work else None, waits_in, enqueued)


def _work(match: re.Match[str]) -> Operation:
    numel = match.groupdict().get("numel")
    size = f"NumelIn={numel}" if numel and int(numel) < LARGEST else ""
    return Operation(int(match["seq"] or 0), match["op"], f"shape [{match['shape']}]" if match["shape"] else size)


@dataclass
class _Member:
    """What a log shows of one rank of a process group: operations that it waits in, and the last that it enqueued."""

    number: int
    works: dict[int, Operation | None] = field(default_factory=dict)
    enqueued: int | None = None

    @property
    def waits_in(self) -> int | None:
        return min(self.works, default=None)


def standstills(reports: Iterable[CollectiveReport], world: Collection[str]) -> Iterator[Standstill]:
    """Yield for each process group how its ranks stand. `world` are all ranks of which the log has lines."""
    for (identity, name), of_group in _by_group(reports).items():
        members: dict[str, _Member] = {}
        for report in of_group:
            member = members.setdefault(report.rank, _Member(report.number))
            if report.waits_in is not None:
                member.works[report.waits_in] = report.work or member.works.get(report.waits_in)
            member.enqueued = max(member.enqueued, report.enqueued or 0) if member.enqueued else report.enqueued
        line = min(report.line for report in of_group)
        title = name if name not in ("", "undefined") else f"process group {identity}" if identity else ""
        if any(member.works for member in members.values()):
            silent = _silent(members, world if of_all_ranks((identity, name)) else ())
            position, ranks, text = _judged(members, silent, comparable=bool(identity))
            yield Standstill(position, tuple(ranks), f"{title}: {text}" if title else text, line)


def _by_group(reports: Iterable[CollectiveReport]) -> dict[tuple[str, str], list[CollectiveReport]]:
    """Return the reports of each group. The watchdog's first line names none: the next line of the same rank does."""
    groups: dict[tuple[str, str], list[CollectiveReport]] = defaultdict(list)
    pending: dict[tuple[str, int | None], CollectiveReport] = {}
    for report in reports:
        key = (report.rank, report.waits_in)
        if report.group is None:
            pending[key] = report
            continue
        groups[report.group].append(report)
        if nameless := pending.pop(key, None):
            groups[report.group].append(replace(nameless, number=report.number))
    grouped = {(report.rank, report.waits_in) for of_group in groups.values() for report in of_group}
    if nameless_reports := [report for key, report in pending.items() if key not in grouped]:
        groups["", ""] = nameless_reports
    return groups


def _silent(members: Mapping[str, _Member], world: Collection[str]) -> list[str]:
    """Return ranks without a report: those of the world, or those whose numbers within the group are missing."""
    if world:
        return [rank for rank in world if rank not in members]
    numbers = {member.number for member in members.values()}
    return [_member(number) for number in range(max(numbers)) if number not in numbers]


def _member(number: int) -> str:
    """Return the name, which _MEMBER reads, of a rank of which only the number within its group is known."""
    return f"number {number} of the group"


_Judgement = tuple[Position, Sequence[str], str]


def _judged(members: Mapping[str, _Member], silent: Sequence[str], *, comparable: bool) -> _Judgement:
    """Return how the ranks of one group stand. Numbers of different groups can't be compared."""
    waiting = {rank: member.waits_in for rank, member in members.items() if member.waits_in is not None}
    works = {rank: members[rank].works[seq] or Operation(seq, "operation") for rank, seq in waiting.items()}
    paired = any(work.op in POINT_TO_POINT for work in works.values())
    if comparable and not paired and (judgement := _mismatch(members) or _behind(members, works)):
        return judgement
    by_work = grouped(works, str)
    described = "; ".join(f"{verb_phrase(ranks, 'wait')} in {work}" for work, ranks in by_work.items())
    if silent:
        missing = f"{verb_phrase(silent, 'report')} nothing"
        behind = len(by_work) == 1 and not paired and all(rank.isdigit() for rank in silent)
        return (Position.BEHIND if behind else Position.WAITING), silent, f"{missing}, {described}"
    if paired or len(by_work) > 1 or len(members) == 1:
        return Position.WAITING, [], f"{described}; nothing shows where the ranks are that it waits for"
    return Position.TOGETHER, [], f"{described}: of the ranks that report, none is behind"


def _mismatch(members: Mapping[str, _Member]) -> _Judgement | None:
    """Return the first operation that ranks call by another type or with another size, None where there is none."""
    for seq in sorted({seq for member in members.values() for seq in member.works}):
        works = {rank: work for rank, member in members.items() if (work := member.works.get(seq))}
        judgement = differing(works)
        if judgement:
            return judgement
    return None


def differing(works: Mapping[str, Operation]) -> _Judgement | None:
    """Return how the operations differ that ranks run at the same number, None where they agree."""
    by_type = grouped(works, lambda work: work.op)
    sized = {rank: work for rank, work in works.items() if work.size and work.op in EQUAL_SIZES}
    by_size = grouped(sized, lambda work: work.size)
    if len(by_type) < 2 and len(by_size) < 2:
        return None
    what, groups = ("different collectives", by_type) if len(by_type) > 1 else ("different sizes", by_size)
    seq = next(iter(works.values())).seq
    described = "; ".join(f"{name_all(ranks)}: {works[ranks[0]]}" for ranks in groups.values())
    return Position.DIVERGED, odd_ones(groups.values()), f"{what} at #{seq}: {described}"


def _behind(members: Mapping[str, _Member], works: Mapping[str, Operation]) -> _Judgement | None:
    """Return the ranks that have not enqueued, or not finished, what others wait in; None where there are none."""
    waited = max(works.values(), key=lambda work: work.seq)
    reached = {rank: member.enqueued if member.enqueued is not None else waited.seq for rank, member in members.items()}
    behind = [rank for rank in members if reached[rank] < waited.seq and rank not in works]
    behind = behind or [rank for rank in members if reached[rank] < waited.seq]
    if behind:
        following = min(
            (work for work in works.values() if work.seq > min(reached[rank] for rank in behind)),
            key=lambda work: work.seq,
        )
        waiting = verb_phrase([rank for rank, work in works.items() if work.seq >= following.seq], "wait")
        last = ", ".join(sorted({f"#{reached[rank]}" for rank in behind}))
        text = f"{verb_phrase(behind, 'have')} not enqueued {following}, which {waiting} for; the last is {last}"
        return Position.BEHIND, behind, text
    first = min(works.values(), key=lambda work: work.seq)
    if first.seq < waited.seq:
        behind = [rank for rank, work in works.items() if work.seq == first.seq]
        waiting = verb_phrase([rank for rank, work in works.items() if work.seq > first.seq], "wait")
        text = f"{verb_phrase(behind, 'have')} not finished {first}, {waiting} in {waited} already"
        return Position.BEHIND, behind, text
    return None


def grouped(works: Mapping[str, Any], key: Callable[[Any], Any]) -> dict[Any, list[str]]:
    """Return the ranks of each key of their values, most ranks first."""
    groups: dict[Any, list[str]] = defaultdict(list)
    for rank, value in works.items():
        groups[key(value)].append(rank)
    return dict(sorted(groups.items(), key=lambda group: -len(group[1])))


def odd_ones(groups: Iterable[Sequence[str]]) -> list[str]:
    """Return the ranks outside of the largest group; all of them where no group is the largest."""
    ordered = sorted(groups, key=len, reverse=True)
    tied = len(ordered) > 1 and len(ordered[0]) == len(ordered[1])
    return [rank for ranks in (ordered if tied else ordered[1:]) for rank in ranks]


def name_all(ranks: Iterable[str]) -> str:
    """Return "rank 3", "ranks 0, 2-5", "numbers 0-2 of the group", or the names of what has no number."""
    of_job, of_group, names = list[int](), list[int](), list[str]()
    for rank in ranks:
        if rank.isdigit():
            of_job.append(int(rank))
        elif member := _MEMBER.fullmatch(rank):
            of_group.append(int(member[1]))
        else:
            names.append(rank)
    names.sort(key=lambda name: (len(name), name))  # 2 before 10
    return ", ".join(
        [*_spans("rank", of_job), *(f"{span} of the group" for span in _spans("number", of_group)), *names]
    )


def _spans(noun: str, numbers: Sequence[int]) -> list[str]:
    """Return "ranks 0, 2-5" in a list, or no text for no numbers."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return [f"{noun}{'s' * (len(numbers) > 1)} {', '.join(texts)}"] if numbers else []


def verb_phrase(ranks: Sequence[str], verb: str) -> str:
    """Return the names of ranks with a verb: "rank 3 waits", "ranks 0, 1 have"."""
    singular = {"have": "has"}.get(verb, f"{verb}s")
    return f"{name_all(ranks)} {singular if len(ranks) == 1 else verb}"


_LATE: Final = (
    (
        re.compile(r"\[Rank 0\]: Ranks? (?P<ranks>\d+(?:, \d+)*) failed to pass monitoredBarrier in (?P<what>\d+ ms)"),
        "{} did not reach the monitored barrier in {}",
    ),
    (
        re.compile(r"ranks \[(?P<ranks>\d+(?:, \d+)*)\] are the lagging ranks (?P<what>that caused this timeout)"),
        "{} joined no collective of the group ({}, by the numbers of the group)",
    ),
    (
        re.compile(r"\[(?P<ranks>\d+(?:, \d+)*)\] finished collective #\d+, but didn't join collective #(?P<what>\d+)"),
        "{} did not join collective #{} (by the numbers of the group)",
    ),
)
_SIZES: Final = re.compile(r"op\.preamble\.length <= op\.nbytes\. (\d+) vs (\d+)")


def stated(line: int, text: str, rank: str = "") -> Iterator[Standstill]:
    """Yield the standstill that a line states by itself: barriers, desync reports, gloo's sizes."""
    for pattern, sentence in _LATE:
        if late := pattern.search(text):
            ranks = late["ranks"].split(", ")
            yield Standstill(Position.BEHIND, tuple(ranks), sentence.format(name_all(ranks), late["what"]), line)
    if "preamble.length" in text and (sizes := _SIZES.search(text)):
        receiver = name_all([rank]) if rank else "a rank"
        differ = f"{receiver} received {sizes[1]} bytes where it expected {sizes[2]}: sizes or collectives differ"
        yield Standstill(Position.DIVERGED, (), differ, line)
