"""Find the known failures that a log shows: parse its exceptions and native crashes, compare them with the signatures.

A signature is not searched in the text of the whole log: its message is searched in each exception, its stack in each
printed crash. What a log only quotes is likely at most. The log is read once, in bounded memory; lines far from every
word that an exception or a crash needs are not separated.
"""

from __future__ import annotations

import itertools
import re
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final

from matrix.ground.catalog.failure import Expectation, Failure, Ruling, Signature
from matrix.ground.catalog.kinds import Clue, KindTable
from matrix.ground.catalog.reach import Reach, Reached
from matrix.ground.catalog.stack import Stack, component_title
from matrix.ground.verdicts.blame import CASCADE, headline
from matrix.ground.verdicts.collectives import Standstill
from matrix.ground.verdicts.crash import NativeCrash, located
from matrix.ground.verdicts.kind_match import (
    HEAD,
    ArgumentsSeen,
    EvidenceScan,
    KindIndex,
    KindSighting,
    VersionsSeen,
    causes,
    gathered,
)
from matrix.ground.verdicts.lines import Excerpts, Prefixes, Triggers, quoted_lines
from matrix.ground.verdicts.outcome import EVIDENCE, Frame, Outcome, OutcomeKind, Raised
from matrix.ground.verdicts.rank_logs import RankFacts, RankLog, is_dump, rank_of
from matrix.ground.verdicts.signature_match import Entry, SignatureIndex
from matrix.ground.verdicts.tracebacks import LoggedException, Tracebacks

STREAMS: Final = 512  # ranks whose lines are kept apart at a time; each takes at most EVIDENCE characters
LISTED: Final = 20  # unknown faults, and consequences, in a result
COMPARED: Final = 1_000  # different exceptions that are compared with failures that they resemble
NEAREST: Final = 3  # failures named as similar to one exception
CHAINS: Final = 10_000  # tracebacks remembered, to decide which have a known cause

# A window without any of these holds no printed crash (matrix/ground/verdicts/crash.py).
_CRASH: Final = (
    "Process received signal",
    "Caught signal",
    "Fatal Python error",
    "terminate called",
    ", PID: ",
    "*** ",
    "exitcode",
    "Exit code:",
    "exited on",
)
# Every fault has one of these in its first or last line: they are parts of the words above and below, and of the names
# of exceptions. Each takes a search through the log, so they are few.
_TRIGGERS: Final = (
    "(most recent call ",
    "rror",
    "xception",
    "ignal",
    "xit",
    "terminate called",
    ", PID: ",
    "*** ",
    "Watchdog",
    '", line ',  # of a frame, in a log that begins within a traceback
    "Python v3.",  # py-spy
)
# Messages of a rank that was ended, or that waited in vain, because another one failed.
_CONSEQUENCES: Final = (
    "closing signal SIGTERM",
    "Signal 15 (SIGTERM) received",
    "Watchdog caught collective operation",
)
_WAITED: Final = re.compile(
    r"Timed out (?:waiting|after)|[Ww]ait timeout|Watchdog|collective operation timeout|monitoredBarrier"
)
_NO_STACK: Final = "the log has no frame, module, option or package of Megatron's stack: another program may print this"
_AGENT_ERRORS: Final = frozenset({"ChildFailedError", "SignalException"})  # of torchrun itself
_PEER_ERRORS: Final = _AGENT_ERRORS | {"DistNetworkError", "DistStoreError"}
_ROOT: Final = "Root Cause (first observed failure)"
_ROOT_RANK: Final = re.compile(r"^\s*rank +: (\d+) \(local_rank: \d+\)")


@dataclass(frozen=True)
class LogFault:
    """A fault in the log: its line number and a one-line description, and the exception or crash that it is.

    `frame` is the deepest frame of Megatron's stack on its traceback, None where it has none.
    """

    line: int
    what: str
    raised: Raised | None = field(default=None, compare=False)
    crash: NativeCrash | None = field(default=None, compare=False)
    frame: Frame | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Sighting:
    """A known failure in the log, at its first occurrence. `times` counts the occurrences.

    `certain`: two or more keys of the signature hold in one exception or crash, and no other cause is known that shows
    it, or the versions in the log are among those that the failure affects. Otherwise it is likely: the signature has
    one key, the log `lacks` a part of the evidence, or there are `other_causes`. `options`: whether those of the job,
    as the log shows them, reach the failure; "" where that does not show.
    """

    failure: Failure
    signature: Signature
    fault: LogFault
    certain: bool
    times: int = 1
    lacks: str = ""
    options: str = ""

    @property
    def other_causes(self) -> str:
        """Return what else shows the same, "" where the log decides."""
        return "" if self.certain else self.signature.shared

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "failure": self.failure.id,
            "title": self.failure.title,
            "confidence": "certain" if self.certain else "likely",
            "lacks": self.lacks,
            "other_causes": self.other_causes,
            "options": self.options,
            "signature": self.signature.name,
            "line": self.fault.line,
            "text": self.fault.what,
            "times": self.times,
            "affected": [{"where": str(rule), "reason": rule.reason} for rule in self.failure.affected],
            "fix": " ".join(self.failure.fix.split()),
            "workarounds": [{"text": option.text, "verified": option.verified} for option in self.failure.workarounds],
            "references": list(self.failure.references),
        }


@dataclass(frozen=True)
class Similar:
    """An exception in the log that resembles a known failure and is not the same: `differs` states how."""

    failure: Failure
    fault: LogFault
    differs: str


@dataclass(frozen=True)
class Reading:
    """The faults of a log: failures of the catalog, unknown faults, and consequences of other faults (`follows`).

    `similar` are known failures that unknown faults resemble, `kinds` the kinds of failure that they are. `versions`
    are those that the log names near its faults. `root_rank` is the rank that torchrun names as the first to fail, None
    where it names none. `standstills` are why ranks wait, as far as the log shows it. The lines of several logs are
    counted in one go: `starts` has the count before each log, and its name. `clues` are lines that state why an error
    was raised. `raised` are the first exceptions of each chain, `inferred` the versions to which their lines belong.
    """

    known: tuple[Sighting, ...]
    unknown: tuple[LogFault, ...]
    follows: tuple[LogFault, ...]
    lines: int
    root_rank: int | None = None
    similar: tuple[Similar, ...] = ()
    kinds: tuple[KindSighting, ...] = ()
    versions: VersionsSeen = field(default_factory=VersionsSeen)
    standstills: tuple[Standstill, ...] = ()
    starts: tuple[tuple[int, str], ...] = ()
    clues: tuple[LogFault, ...] = ()
    raised: tuple[LogFault, ...] = ()
    inferred: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def place(self, line: int) -> tuple[str, int]:
        """Return the log of a line ("" of a single log) and its number there."""
        start, log = max(((first, name) for first, name in self.starts if first < line), default=(0, ""))
        return log, line - start


@dataclass
class _Chain:
    """Exceptions that caused each other: the first fault, the failures that they show, whether all are consequences.

    `alone`: the first was printed without a traceback. `vague`: the failures shown that any program prints.
    """

    fault: LogFault
    known: set[str] = field(default_factory=set)
    follows: bool = False
    alone: bool = False
    similar: list[Similar] = field(default_factory=list)
    vague: set[str] = field(default_factory=set)
    kinds: list[KindSighting] = field(default_factory=list)


@dataclass
class _Evidence:
    """What a log shows: the occurrences of each signature, its chains of exceptions, native crashes, consequences.

    The occurrences are by line, apart by failure, signature, what the log lacks of the evidence ("": nothing), and
    whether they name something of the stack.
    """

    matches: dict[tuple[str, str, str, bool], dict[int, tuple[Entry, LogFault]]] = field(default_factory=dict)
    chains: dict[tuple[int, int], _Chain] = field(default_factory=dict)  # by stream and chain of it
    crashes: dict[int, NativeCrash] = field(default_factory=dict)
    consequences: dict[int, LogFault] = field(default_factory=dict)
    vague: list[Similar] = field(default_factory=list)
    kinds: dict[tuple[int, str], KindSighting] = field(default_factory=dict)  # of texts, by line and kind
    versions: VersionsSeen = field(default_factory=VersionsSeen)
    arguments: ArgumentsSeen = field(default_factory=ArgumentsSeen)
    beside: dict[str, tuple[int, str]] = field(default_factory=dict)  # by group: number of the row, what it captured
    of_stack: str = ""  # a line beside the faults that shows the stack
    clues: dict[str, tuple[Clue, LogFault]] = field(default_factory=dict)  # by text, numbers aside

    def add_match(self, entry: Entry, fault: LogFault, lacks: str = "", *, of_stack: bool) -> None:
        occurrences = self.matches.setdefault((entry.failure.id, entry.signature.name, lacks, of_stack), {})
        if len(occurrences) < CHAINS:
            occurrences[fault.line] = (entry, fault)

    def add_raised(self, chain: _Chain, raised: Raised, entries: Iterable[Entry], fault: LogFault, lacks: str) -> None:
        """Add the failures that an exception of a chain shows."""
        for entry in entries:
            of_stack = entry.names_stack(raised)
            self.add_match(entry, fault, lacks, of_stack=of_stack)
            (chain.known if of_stack else chain.vague).add(entry.failure.id)

    def settle(self, stack: str) -> None:
        """Count what any program prints as a known failure where the log shows the stack, and as similar elsewhere."""
        for chain in self.chains.values():
            chain.known |= chain.vague if stack else set()
        for key in [] if stack else [key for key in self.matches if not key[-1]]:
            entry, fault = min(self.matches.pop(key).values(), key=lambda occurrence: occurrence[1].line)
            self.vague.append(Similar(entry.failure, fault, _NO_STACK))

    def rule_out(self) -> None:
        """Count as similar what the log itself contradicts."""
        for key, occurrences in [*self.matches.items()]:
            entry, fault = min(occurrences.values(), key=lambda occurrence: occurrence[1].line)
            if contradiction := self._contradiction(entry):
                del self.matches[key]
                self.vague.append(Similar(entry.failure, fault, contradiction))
                for chain in self.chains.values():
                    chain.known.discard(entry.failure.id)

    def bearing(self, failure: Failure) -> tuple[Stack, Ruling, Reached]:
        """Return the versions that the log names, what a failure's rules say of them, and how its options reach it."""
        stack = self.versions.stack
        return stack, failure.ruling(stack), self.arguments.reach(failure, stack)

    def _contradiction(self, entry: Entry) -> str:
        """Return what in the log rules a failure out, its versions, its options or a line; "" for nothing."""
        stack, ruling, reach = self.bearing(entry.failure)
        if ruling.expectation is Expectation.WORKS and ruling.rule:
            components = [name for name in ruling.rule.components if name in stack.versions]
            titles = " and ".join(f"{component_title(name)} {stack[name]}" for name in components)
            return f"works with {titles}, which the log names: {ruling.rule.reason}"
        if reach.reach is Reach.AVOIDED and not (entry.signature.keys > 1 and not entry.signature.shared):
            return _on_options(reach)  # other programs raise the same; of two keys, the error itself is stronger
        excluded = re.compile(entry.signature.not_with or "(?!)")
        lines = (line.what for _, line in self.clues.values())
        return next((f"the log names another cause: {line}" for line in lines if excluded.search(line)), "")

    def add_consequence(self, fault: LogFault) -> None:
        if len(self.consequences) < LISTED:
            self.consequences[fault.line] = fault


class _Exceptions:
    """Adds the exceptions of a log to its evidence."""

    def __init__(self, index: SignatureIndex, kinds: KindIndex, evidence: _Evidence, ranks: RankFacts) -> None:
        self._index, self._kinds, self._evidence, self._ranks = index, kinds, evidence, ranks
        self._compared = 0
        self._latest: tuple[LoggedException, _Chain] | None = None
        self._assessed = lru_cache(maxsize=1024)(self._assess)

    def add(self, stream: int, logged: LoggedException, rank: str) -> None:
        """Compare an exception of a rank with the signatures, and add it to its chain."""
        frame = self._kinds.stack_frame(logged.raised.frames)
        fault = LogFault(logged.line, _one_line(logged.raised), raised=logged.raised, frame=frame)
        owners, lacks, similar = self._assessed(logged.raised, logged.alone)
        follows = logged.raised.type in _PEER_ERRORS or _is_consequence(logged.raised.message)
        if not logged.alone and logged.raised.type not in _AGENT_ERRORS:
            self._ranks.add_error(logged.line, rank, headline(logged.raised), logged.raised.frames, follows=follows)
        key, chains = (stream, logged.chain), self._evidence.chains
        chain = chains.get(key) or _Chain(fault, follows=follows, alone=logged.alone)
        self._evidence.add_raised(chain, logged.raised, owners, fault, lacks)
        if key not in chains and len(chains) >= CHAINS:
            return
        chains[key] = chain
        chain.fault = fault if chain.follows and not follows else chain.fault
        chain.follows &= follows
        chain.similar += [Similar(entry.failure, fault, differs) for entry, differs in similar[:NEAREST]]
        if not follows and (kind := self._kinds.shown_by(logged.raised)):
            chain.kinds.append(replace(kind, line=logged.line))
        self._latest = (logged, chain)

    def _assess(self, raised: Raised, alone: bool) -> tuple[list[Entry], str, list[tuple[Entry, str]]]:
        """Return the failures that an exception shows, what the log lacks of it, and the failures that it resembles."""
        if not alone and (whole := self._index.shown_by(raised)):
            return whole, "", []
        part = [] if raised.frames else self._index.partly_shown_by(raised)
        self._compared += not part
        similar = self._index.similar_to(raised) if not part and self._compared <= COMPARED else []
        return part, "the traceback" if alone else "the frames", similar

    def end_within(self, stream: int, frame: Frame, line: int) -> None:
        """Add the traceback that has no exception at the end of the log, in line `line`."""
        position = f"{frame.function}, {frame.file}:{frame.line}"
        chain = _Chain(LogFault(line, f"the log ends within a traceback, in {position}"))
        for entry in self._index.raised_in(frame):
            differs = f"raised in {entry.signature.frame}, where the log ends"
            chain.similar.append(Similar(entry.failure, chain.fault, differs))
        self._evidence.chains[stream, -1] = chain

    def end_cut(self, line: int) -> None:
        """Compare the exception in the last line of a log, which is cut, by the start of its message."""
        if self._latest and self._latest[0].line == line:
            logged, chain = self._latest
            fault, lacks = LogFault(line, _one_line(logged.raised)), "the end of the message"
            entries = [] if chain.known or chain.vague else self._index.begun_by(logged.raised)
            self._evidence.add_raised(chain, logged.raised, entries, fault, lacks)


@dataclass
class _Stream:
    """The last lines of one rank: a window of at most EVIDENCE characters."""

    tracebacks: Tracebacks
    number: int
    rank: str
    window: deque[tuple[int, str]] = field(default_factory=deque)
    size: int = 0

    def add(self, number: int, text: str) -> bool:
        """Add a line; return whether the window is full."""
        if self.window and self.window[-1][1] == text:
            return False  # a repeated line: scanning a window of a thousand equal lines takes quadratic time
        self.window.append((number, text))
        self.size += len(text) + 1
        return self.size > EVIDENCE

    def halve(self) -> None:
        """Drop the first half of the window; the other half is searched again: a crash may span both."""
        while self.size > EVIDENCE // 2:
            self.size -= len(self.window.popleft()[1]) + 1


class _Reader:
    """Reads the lines of a log, the ranks' apart, into `evidence`."""

    def __init__(self, index: SignatureIndex, kinds: KindIndex) -> None:
        self._index, self._kinds = index, kinds
        self._streams: OrderedDict[str, _Stream] = OrderedDict()
        self._numbers = itertools.count()
        self.evidence = _Evidence()
        self.ranks = RankFacts()
        self._exceptions = _Exceptions(index, kinds, self.evidence, self.ranks)
        self.root_rank: int | None = None  # -1 between the line that announces it and its own

    def start(self, rank: str) -> None:
        """Start the log of a rank, "" for one of several ranks."""
        self._prefixes, self._rank = Prefixes(), rank
        self.root_rank = None if self.root_rank == -1 else self.root_rank
        self.ranks.start(rank)

    def take(self, number: int, line: str) -> None:
        """Process one line of the log."""
        tags, text = self._prefixes.split(line)
        for part in quoted_lines(text) if "\\" in text or text.startswith("{") else (text,):
            self._take(number, tags, self._prefixes.without(part))

    def _take(self, number: int, tags: str, text: str) -> None:
        stream = self._stream(tags)
        self.ranks.take(number, text, stream.rank)
        for logged in stream.tracebacks.take(number, text):
            self._exceptions.add(stream.number, logged, stream.rank)
        if ("ignal" in text or "Watchdog" in text) and any(words in text for words in _CONSEQUENCES):
            self.evidence.add_consequence(LogFault(number, text.strip()))
        elif _ROOT in text:
            self.root_rank = -1
        elif self.root_rank == -1 and (rank := _ROOT_RANK.match(text)):
            self.root_rank = int(rank[1])
        if stream.add(number, text):
            self._search(stream)
            stream.halve()

    def _stream(self, tags: str) -> _Stream:
        if stream := self._streams.get(tags):
            self._streams.move_to_end(tags)
            return stream
        if len(self._streams) >= STREAMS:
            self._end(self._streams.popitem(last=False)[1])
        rank, number = rank_of(tags, self._rank), next(self._numbers)
        stream = self._streams[tags] = _Stream(Tracebacks(self._index.types), number, rank)
        return stream

    def end(self) -> None:
        """Process what is pending; call it after the last line, and where lines are left out."""
        for stream in self._streams.values():
            self._end(stream)
        self._streams.clear()

    def _end(self, stream: _Stream) -> None:
        for logged in stream.tracebacks.close():
            self._exceptions.add(stream.number, logged, stream.rank)
        self._search(stream)

    def _search(self, stream: _Stream) -> None:
        for line, crash in _search_window(stream.window, self._index, self._kinds, self.evidence):
            self.ranks.add_error(line, stream.rank, crash, (), follows=False)

    def close(self, line: int, *, is_cut: bool) -> None:
        """Process the end of a log, after its last line, which may be cut."""
        for stream in self._streams.values():
            if frame := stream.tracebacks.innermost:
                self._exceptions.end_within(stream.number, frame, line)
        self.end()
        if is_cut:
            self._exceptions.end_cut(line)


def _search_window(
    window: Sequence[tuple[int, str]], index: SignatureIndex, kinds: KindIndex, evidence: _Evidence
) -> list[tuple[int, str]]:
    """Compare a window of lines with the signatures and kinds of crashes and of log text; return the crashes in it."""
    text = "".join(f"{line}\n" for _, line in window)

    def at(offset: int) -> int:
        return window[text.count("\n", 0, offset)][0]

    crashes: list[tuple[int, str]] = []
    printed = located(text) if any(words in text for words in _CRASH) else []
    ends = [start for start, _ in printed[1:]] + [len(text)]
    for (start, crash), end in zip(printed, ends, strict=False):
        fault = LogFault(at(start), _crash_on_one_line(crash))
        if crash.signal == "SIGTERM" or (crash.printer == "terminate" and _is_consequence(text[start:end])):
            evidence.add_consequence(fault)
            continue
        evidence.crashes[fault.line] = crash
        if kind := kinds.shown_by(Raised(crash.thrown, crash.message)) if crash.message else None:
            evidence.kinds.setdefault((fault.line, kind.kind.id), replace(kind, line=fault.line, text=fault.what))
        crashes.append((fault.line, fault.what))
        outcome = Outcome(OutcomeKind.SIGNALED, signal=crash.signal, evidence=text[start:end])
        for entry in index.shown_by_crash(outcome):
            evidence.add_match(entry, fault, of_stack=entry.text_names_stack)
    for entry, span in index.shown_by_text(text):
        fault = LogFault(at(span.start()), span[0].partition("\n")[0].strip())
        evidence.add_match(entry, fault, of_stack=entry.text_names_stack)
    if kinds.may_show(text):
        _add_kinds(text, at, kinds, evidence)
    evidence.versions.add(text)
    evidence.arguments.add(text)
    return crashes


def _add_kinds(text: str, at: Callable[[int], int], kinds: KindIndex, evidence: _Evidence) -> None:
    """Add the kinds that a part of a log shows, and the lines beside them, to its evidence."""
    for offset, kind in kinds.shown_by_text(text):
        evidence.kinds.setdefault((at(offset), kind.kind.id), replace(kind, line=at(offset)))
    for offset, clue, line in kinds.clues_in(text):
        if len(evidence.clues) < LISTED:
            evidence.clues.setdefault(re.sub(r"\d+", "#", line), (clue, LogFault(at(offset), line)))
    for number, row, captured in kinds.beside_in(text):
        if row.group not in evidence.beside or number < evidence.beside[row.group][0]:
            evidence.beside[row.group] = (number, captured)
        evidence.of_stack = evidence.of_stack or captured * row.of_stack


def match(chunks: Iterable[str], failures: Iterable[Failure], table: KindTable | None = None) -> Reading:
    """Return the faults of a log, given as its text in parts of any size (matrix.ground.verdicts.lines.texts).

    `table` has the kinds of failure; without it, none is found. Signatures marked `own` are left out.
    """
    return match_logs([(RankLog(""), chunks)], failures, table)


Logs = Iterable[tuple[RankLog, Iterable[str]]]  # of each rank: its text in parts
# Component -> the versions that tracebacks may be of. One alone counts as if the log named it, where it names none.
Infer = Callable[[Iterable[Raised]], Mapping[str, Sequence[str]]]


def match_logs(
    logs: Logs, failures: Iterable[Failure], table: KindTable | None = None, infer: Infer = lambda raised: {}
) -> Reading:
    """Return the faults of the logs of a job, each given as its text in parts; the other parameters as of `match`."""
    index, kinds = SignatureIndex(failures), KindIndex(table)
    reader, lines, stack = _Reader(index, kinds), 0, ""
    triggers = Triggers([*_TRIGGERS, *index.types], itertools.chain(index.choices(), kinds.choices()))
    starts: list[tuple[int, str]] = []
    for log, chunks in logs:
        starts.append((lines, log.path))
        parts = iter(chunks)
        head = next(parts, "")
        reader.evidence.versions.add(head[:HEAD])
        reader.evidence.arguments.add(head[:HEAD])
        scan = EvidenceScan(itertools.chain([head], parts))
        lines += _read(reader, log.rank, Excerpts(scan, Triggers([""]) if is_dump(head) else triggers), lines)
        stack = stack or scan.evidence
    evidence = reader.evidence
    stack = stack or evidence.of_stack
    raised, inferred = _inferred(evidence, infer)
    evidence.settle(stack)
    evidence.rule_out()
    known_failures = sorted(_known(evidence), key=lambda sighting: (not sighting.certain, sighting.fault.line))
    consequences = [chain.fault for chain in evidence.chains.values() if chain.follows and not chain.known]
    root_rank = reader.root_rank if reader.root_rank != -1 else None
    texts = {group: captured for group, (_, captured) in evidence.beside.items()}
    sightings = gathered((kinds.with_beside(kind, texts) for kind in _kinds(evidence)), stack=bool(stack))
    kinds_shown = causes(sightings, known=bool(known_failures))
    following = _following(evidence, sightings, kinds_shown)
    return Reading(
        tuple(known_failures),
        tuple(_unknown(evidence, known_failures, following))[:LISTED],
        tuple(_distinct([*consequences, *evidence.consequences.values()]))[:LISTED],
        lines,
        root_rank,
        tuple(_similar(evidence, known_failures))[:LISTED],
        tuple(kinds_shown[:LISTED]),
        evidence.versions,
        tuple(reader.ranks.standstills(root_rank))[:LISTED],
        tuple(starts),
        tuple(_clues(evidence)),
        raised,
        inferred,
    )


def _inferred(evidence: _Evidence, infer: Infer) -> tuple[tuple[LogFault, ...], Mapping[str, Sequence[str]]]:
    """Return the first exceptions, and the versions that they may be of; a single one counts as named."""
    faults = _distinct(chain.fault for chain in evidence.chains.values() if chain.fault.raised and not chain.follows)
    raised, texts = tuple(faults)[:LISTED], evidence.versions.texts
    possible = infer([fault.raised for fault in raised if fault.raised])
    inferred = {name: versions for name, versions in possible.items() if name not in texts}
    texts.update((name, dict.fromkeys(versions)) for name, versions in inferred.items() if len(versions) == 1)
    return raised, inferred


def _read(reader: _Reader, rank: str, excerpts: Excerpts, lines: int) -> int:
    """Process the log of a rank, after `lines` lines of other logs; return the count of its lines."""
    previous = 0
    reader.start(rank)
    for number, text in excerpts:
        if number > previous + 1:
            reader.end()
        reader.take(lines + number, text)
        previous = number
    reader.close(lines + excerpts.lines, is_cut=excerpts.is_cut)
    return excerpts.lines


def _kinds(evidence: _Evidence) -> Iterator[KindSighting]:
    """Yield the kinds of failure in a log, but those of faults that are known; of one line those of its text."""
    matched_lines = {line for occurrences in evidence.matches.values() for line in occurrences}
    chains = evidence.chains.values()
    matched_lines |= {kind.line for chain in chains if chain.known for kind in chain.kinds}
    of_chains = [kind for chain in chains if not chain.known for kind in chain.kinds]
    raised = {(kind.line, kind.kind.id) for kind in of_chains}
    of_texts = [kind for key, kind in evidence.kinds.items() if key[0] not in matched_lines and key not in raised]
    stated = {kind.line for kind in of_texts}  # by its text a line is of one kind, whatever raised it
    yield from (kind for kind in of_chains if kind.line not in stated)
    yield from of_texts


def _known(evidence: _Evidence) -> list[Sighting]:
    """Return of each failure in the log its best sighting: certain before likely, complete before lacking, first."""
    codes = {crash.exit_code for crash in evidence.crashes.values() if crash.exit_code is not None}
    sightings: dict[str, Sighting] = {}
    for (_, _, lacks, _), occurrences in evidence.matches.items():
        entry, fault = occurrences[min(occurrences)]
        signature = entry.signature
        if signature.exit_code is not None and codes and signature.exit_code not in codes:
            continue  # the log has the ranks' exit statuses, and none is the signature's
        confirmed = not lacks and (signature.exit_code is None or signature.exit_code in codes)
        _, ruling, reach = evidence.bearing(entry.failure)
        versions_decide = ruling.expectation is Expectation.BROKEN
        alone = not signature.shared or (versions_decide and reach.reach is Reach.REACHED)
        certain = confirmed and signature.keys > 1 and alone and reach.reach is not Reach.AVOIDED
        sighting = Sighting(entry.failure, signature, fault, certain, len(occurrences), lacks, _on_options(reach))
        best = sightings.setdefault(entry.failure.id, sighting)
        sightings[entry.failure.id] = min(best, sighting, key=_order)
    # A last line that a traceback explains, which a launcher repeats, is not another failure with the same message.
    explained = {_bare(sighting) for sighting in sightings.values() if not sighting.lacks} - {None}
    return [sighting for sighting in sightings.values() if not (sighting.lacks and _bare(sighting) in explained)]


def _bare(sighting: Sighting) -> Raised | None:
    """Return the exception without its frames, None for a failure that is none."""
    return sighting.fault.raised and replace(sighting.fault.raised, frames=())


def _on_options(reach: Reached) -> str:
    """Return whether the options of the job, as far as the log shows them, reach a failure; "" where they are open."""
    verbs = {Reach.REACHED: "reaches", Reach.AVOIDED: "excludes"}
    return (
        f"the job has {' and '.join(reach.by)}, which {verbs[reach.reach]} it"
        if reach.by and reach.reach in verbs
        else ""
    )


def _clues(evidence: _Evidence) -> Iterator[LogFault]:
    """Yield the lines that state why an error of this log was raised."""
    texts = [chain.fault.what for chain in evidence.chains.values()]
    texts += map(_crash_on_one_line, evidence.crashes.values())
    texts += [fault.what for occurrences in evidence.matches.values() for _, fault in occurrences.values()]
    raised = {clue for clue, _ in evidence.clues.values() if any(re.search(clue.error, text) for text in texts)}
    yield from (fault for clue, fault in evidence.clues.values() if clue in raised)


def _order(sighting: Sighting) -> tuple[bool, bool, int]:
    return not sighting.certain, bool(sighting.lacks), sighting.fault.line


def _following(evidence: _Evidence, sightings: Sequence[KindSighting], kinds: Sequence[KindSighting]) -> set[int]:
    """Return the lines of the exceptions that follow from the kinds that are shown, of all that were sighted."""
    once = {sighting.kind.id for sighting in sightings if sighting.kind.first or sighting not in kinds}
    lines = {kind.line for chain in evidence.chains.values() for kind in chain.kinds if kind.kind.id in once}
    return lines - {sighting.line for sighting in kinds}


def _unknown(evidence: _Evidence, known_failures: Sequence[Sighting], following: Set[int]) -> Iterable[LogFault]:
    """Return the faults that are neither known failures nor consequences: each text once, at its first line.

    `following` are the lines of exceptions that follow from a kind which is shown.
    """
    chains = [chain for chain in evidence.chains.values() if not chain.known and not chain.follows]
    chains = [chain for chain in chains if all(kind.line not in following for kind in chain.kinds)]
    faults = [chain.fault for chain in chains if not chain.alone]
    matched_lines = {line for occurrences in evidence.matches.values() for line in occurrences}
    signals = {sighting.signature.signal for sighting in known_failures if sighting.signature.signal}
    printed = {line: crash for line, crash in evidence.crashes.items() if crash.printer not in ("torchrun", "mpirun")}
    # A launcher repeats a crash that its rank printed, and so does a second printer.
    launched = {line: crash for line, crash in evidence.crashes.items() if crash.signal or not evidence.chains}
    crashes = printed or ({} if known_failures or faults else launched)
    for line, crash in crashes.items():
        if line not in matched_lines and crash.signal not in signals:
            faults.append(LogFault(line, _crash_on_one_line(crash), crash=crash))
    # Without anything else, an exception that has no traceback counts: a log may have its last line alone.
    return _distinct(faults or ([] if known_failures else [chain.fault for chain in chains]))


def _similar(evidence: _Evidence, known_failures: Sequence[Sighting]) -> Iterator[Similar]:
    """Yield each failure that is not known to be in the log once, at the first exception that resembles it."""
    listed = {sighting.failure.id for sighting in known_failures}
    by_chain = (chain.similar for chain in evidence.chains.values() if not chain.known)
    for similar in itertools.chain(evidence.vague, *by_chain):
        if similar.failure.id not in listed:
            listed.add(similar.failure.id)
            yield similar


def _distinct(faults: Iterable[LogFault]) -> Iterable[LogFault]:
    """Return the first fault of each text, numbers aside, ordered by line."""
    by_text: dict[str, LogFault] = {}
    for fault in sorted(faults, key=lambda fault: fault.line):
        by_text.setdefault(re.sub(r"\d+", "#", fault.what), fault)
    return by_text.values()


def _is_consequence(text: str) -> bool:
    """Return whether a message is of a rank that lost another one, or waited for it in vain."""
    return bool(CASCADE.search(text) or _WAITED.search(text))


def _one_line(raised: Raised) -> str:
    frame = raised.frames[-1] if raised.frames else None
    joined = replace(raised, message=" ".join(raised.message.split("\n")))
    return headline(joined) + (f" (in {frame.function}, {frame.file}:{frame.line})" if frame else "")


def _crash_on_one_line(crash: NativeCrash) -> str:
    end = crash.signal or (f"exit status {crash.exit_code}" if crash.exit_code is not None else "a crash")
    function = next((name for name in crash.frames if "::" in name), crash.frames[0] if crash.frames else "")
    thrown = f": {crash.thrown}: {crash.message}" if crash.thrown else ""
    return f"{end}, reported by {crash.printer}{f', in {function}' if function else ''}{thrown}"
