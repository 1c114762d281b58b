"""Find the known failures that a log shows: parse its exceptions and native crashes, compare them with the signatures.

A signature is not searched in the text of the whole log: its message is searched in each exception, its stack in each
printed crash. What a log only quotes is likely at most. The log is read once, in bounded memory; lines far from every
word that an exception or a crash needs are not separated.
"""

from __future__ import annotations

import re
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final

from matrix.catalog.failure import Failure, Signature
from matrix.verdicts.blame import CASCADE, headline
from matrix.verdicts.crash import NativeCrash, located
from matrix.verdicts.lines import Excerpts, Triggers, quoted_lines
from matrix.verdicts.outcome import EVIDENCE, Outcome, OutcomeKind, Raised
from matrix.verdicts.signature_index import Entry, SignatureIndex
from matrix.verdicts.traceback_styles import RICH_HEADER
from matrix.verdicts.tracebacks import HEADER, LoggedException, Tracebacks

STREAMS: Final = 512  # ranks whose lines are kept apart at a time; each takes at most EVIDENCE characters
LISTED: Final = 20  # unknown faults, and consequences, in a result
COMPARED: Final = 1_000  # different exceptions that are compared with failures that they resemble
NEAREST: Final = 3  # failures named as similar to one exception
CHAINS: Final = 10_000  # tracebacks remembered, to decide which have a known cause

# Prefixes that launchers and log collectors add to each line: a rank (torchrun, mpirun, srun), a time, a level.
_BEFORE: Final = re.compile(
    r"(?P<rank>\[(?:rank|default)\d+\]: ?|\[\d+,\d+\]<std(?:out|err)>: ?|\d{1,6}: )"
    r"|\[?\d{4}[-/]\d\d[-/]\d\d[T _]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?:? ?(?:std(?:out|err) [FP] )?"
    r"(?:\[?(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL)\]?:? )?"
)
_PREFIX: Final = 200  # longest prefix of a traceback's first line that is then removed from the other lines, characters
_HEAD: Final = re.compile(rf"{re.escape(HEADER)}|{RICH_HEADER.pattern}")
# A window without any of these holds no printed crash (matrix/verdicts/crash.py).
_CRASH: Final = (
    "Process received signal", "Caught signal", "Fatal Python error", "terminate called", ", PID: ", "*** ",
    "exitcode", "Exit code:", "exited on",
)  # fmt: skip
# Every fault has one of these in its first or last line: they are parts of the words above and below, and of the names
# of exceptions. Each takes a search through the log, so they are few.
_TRIGGERS: Final = (
    HEADER[:-1], "rror", "xception", "ignal", "xit", "terminate called", ", PID: ", "*** ", "Watchdog",
)  # fmt: skip
# Messages of a rank that was ended, or that waited in vain, because another one failed.
_CONSEQUENCES: Final = (
    "closing signal SIGTERM",
    "Signal 15 (SIGTERM) received",
    "Watchdog caught collective operation",
)
_WAITED: Final = re.compile(r"Timed out (?:waiting|after)|[Ww]ait timeout|Watchdog|collective operation timeout")
_PEER_ERRORS: Final = frozenset({"ChildFailedError", "SignalException", "DistNetworkError", "DistStoreError"})
_ROOT: Final = "Root Cause (first observed failure)"
_ROOT_RANK: Final = re.compile(r"^\s*rank +: (\d+) \(local_rank: \d+\)")


@dataclass(frozen=True)
class LogFault:
    """A fault in the log: its line number and a one-line description."""

    line: int
    what: str


@dataclass(frozen=True)
class Sighting:
    """A known failure in the log, at its first occurrence. `times` counts the occurrences.

    `certain`: two or more keys of the signature hold in one exception or crash. Otherwise it is likely: the signature
    has one key, or the log `lacks` a part of the evidence.
    """

    failure: Failure
    signature: Signature
    fault: LogFault
    certain: bool
    times: int = 1
    lacks: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "failure": self.failure.id,
            "title": self.failure.title,
            "confidence": "certain" if self.certain else "likely",
            "lacks": self.lacks,
            "signature": self.signature.name,
            "line": self.fault.line,
            "text": self.fault.what,
            "times": self.times,
            "affected": [{"where": str(rule), "reason": rule.reason} for rule in self.failure.affected],
            "fix": " ".join(self.failure.fix.split()),
            "workarounds": [{"text": one.text, "verified": one.verified} for one in self.failure.workarounds],
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

    `similar` are known failures that unknown faults resemble. `root_rank` is the rank that torchrun names as the first
    to fail, None where it names none.
    """

    known: tuple[Sighting, ...]
    unknown: tuple[LogFault, ...]
    follows: tuple[LogFault, ...]
    lines: int
    root_rank: int | None = None
    similar: tuple[Similar, ...] = ()


@dataclass
class _Stream:
    """The last lines of one rank: a window of at most EVIDENCE characters."""

    tracebacks: Tracebacks
    number: int
    window: deque[tuple[int, str]] = field(default_factory=deque)
    size: int = 0


@dataclass
class _Chain:
    """Exceptions that caused each other: the first fault, whether one is a known failure, whether all are consequences.

    `alone`: the first was printed without a traceback.
    """

    fault: LogFault
    is_known: bool
    follows: bool
    alone: bool
    similar: list[Similar]


class _Reader:
    def __init__(self, index: SignatureIndex) -> None:
        self._index = index
        self._streams: OrderedDict[str, _Stream] = OrderedDict()
        self._opened = self._compared = 0
        self._shapes: deque[re.Pattern[str]] = deque(maxlen=16)  # prefixes of this log's lines
        self._last: tuple[LoggedException, _Chain] | None = None
        # The occurrences of each signature by line, apart by what the log lacks of the evidence ("": nothing).
        self.found: dict[tuple[str, str, str], dict[int, tuple[Entry, LogFault]]] = {}
        self.chains: dict[tuple[int, int], _Chain] = {}
        self.crashes: dict[int, NativeCrash] = {}
        self.follows: dict[int, LogFault] = {}
        self.root_rank: int | None = None
        self._assessed = lru_cache(maxsize=1024)(self._assess)

    def take(self, number: int, line: str) -> None:
        """Process one line of the log."""
        tags, text = self._without_rank(line)
        for part in quoted_lines(text) if "\\" in text or text.startswith("{") else (text,):
            self._take(number, tags, self._without_prefix(part))

    def _take(self, number: int, tags: str, text: str) -> None:
        stream = self._stream(tags)
        for logged in stream.tracebacks.take(number, text):
            self._add_exception(stream, logged)
        if ("ignal" in text or "Watchdog" in text) and any(words in text for words in _CONSEQUENCES):
            self._add_consequence(LogFault(number, text.strip()))
        elif _ROOT in text:
            self.root_rank = -1
        elif self.root_rank == -1 and (rank := _ROOT_RANK.match(text)):
            self.root_rank = int(rank[1])
        if stream.window and stream.window[-1][1] == text:
            return  # a repeated line: scanning a window of a thousand equal lines takes quadratic time
        stream.window.append((number, text))
        stream.size += len(text) + 1
        if stream.size > EVIDENCE:
            self._search_window(stream)
            while stream.size > EVIDENCE // 2:  # the other half is searched again: a crash may span both
                stream.size -= len(stream.window.popleft()[1]) + 1

    def end(self) -> None:
        """Process what is pending; call it after the last line, and where lines are left out."""
        for stream in self._streams.values():
            self._end(stream)
        self._streams.clear()

    def close(self, line: int, *, is_cut: bool) -> None:
        """Process the end of a log, after its last line, which may be cut."""
        for stream in self._streams.values():
            if frame := stream.tracebacks.innermost:
                fault = LogFault(
                    line, f"the log ends within a traceback, in {frame.function}, {frame.file}:{frame.line}"
                )
                similar = [
                    Similar(entry.failure, fault, f"raised in {entry.signature.frame}, where the log ends")
                    for entry in self._index.raised_in(frame)
                ]
                self.chains[stream.number, -1] = _Chain(fault, False, False, False, similar)
        self.end()
        if is_cut and self._last and self._last[0].line == line and not self._last[1].is_known:
            logged, chain = self._last
            for entry in self._index.begun_by(logged.raised):
                self._add_match(entry, LogFault(line, _one_line(logged.raised)), "the end of the message")
                chain.is_known = True

    def _end(self, stream: _Stream) -> None:
        for logged in stream.tracebacks.close():
            self._add_exception(stream, logged)
        self._search_window(stream)

    def _without_rank(self, text: str) -> tuple[str, str]:
        """Return the rank tags of a line, "" if it has none, and the line without them and without its time."""
        tags = ""
        while text[:1] in "[0123456789" and (before := _BEFORE.match(text)) and before.end():
            tags += (before["rank"] or "").strip()
            text = text[before.end() :]
        return tags, text

    def _without_prefix(self, text: str) -> str:
        """Return a line without the prefix that the first line of a traceback had."""
        if HEADER[:-1] in text[: _PREFIX + len(HEADER)] and (head := _HEAD.search(text)) and head.start():
            prefix = text[: head.start()].removesuffix("Original ")
            shape = re.compile(re.sub(r"\d+", r"\\d+", re.escape(prefix)))
            if prefix and shape not in self._shapes:
                self._shapes.append(shape)
        for shape in self._shapes:
            if found := shape.match(text):
                return text[found.end() :]
        return text

    def _stream(self, tags: str) -> _Stream:
        if stream := self._streams.get(tags):
            self._streams.move_to_end(tags)
            return stream
        if len(self._streams) >= STREAMS:
            self._end(self._streams.popitem(last=False)[1])
        self._opened += 1
        stream = self._streams[tags] = _Stream(Tracebacks(self._index.types), self._opened)
        return stream

    def _add_exception(self, stream: _Stream, logged: LoggedException) -> None:
        fault = LogFault(logged.line, _one_line(logged.raised))
        owners, lacks, similar = self._assessed(logged.raised, logged.alone)
        for entry in owners:
            self._add_match(entry, fault, lacks)
        follows = logged.raised.type in _PEER_ERRORS or _is_consequence(logged.raised.message)
        key = (stream.number, logged.chain)
        if key not in self.chains and len(self.chains) >= CHAINS:
            return
        chain = self.chains.setdefault(key, _Chain(fault, False, follows, logged.alone, []))
        chain.fault = fault if chain.follows and not follows else chain.fault
        chain.is_known |= bool(owners)
        chain.follows &= follows
        chain.similar += [Similar(entry.failure, fault, differs) for entry, differs in similar[:NEAREST]]
        self._last = (logged, chain)

    def _assess(self, raised: Raised, alone: bool) -> tuple[list[Entry], str, list[tuple[Entry, str]]]:
        """Return the failures that an exception shows, what the log lacks of it, and the failures that it resembles."""
        if not alone and (whole := self._index.shown_by(raised)):
            return whole, "", []
        part = [] if raised.frames else self._index.partly_shown_by(raised)
        self._compared += not part
        similar = self._index.similar_to(raised) if not part and self._compared <= COMPARED else []
        return part, "the traceback" if alone else "the frames", similar

    def _search_window(self, stream: _Stream) -> None:
        """Compare a window with the signatures of native crashes and of log text."""
        text = "".join(f"{line}\n" for _, line in stream.window)

        def at(offset: int) -> int:
            return stream.window[text.count("\n", 0, offset)][0]

        printed = located(text) if any(words in text for words in _CRASH) else []
        ends = [start for start, _ in printed[1:]] + [len(text)]
        for (start, crash), end in zip(printed, ends, strict=False):
            line = at(start)
            if crash.signal == "SIGTERM" or (crash.printer == "terminate" and _is_consequence(text[start:end])):
                self._add_consequence(LogFault(line, _crash_on_one_line(crash)))
                continue
            self.crashes[line] = crash
            outcome = Outcome(OutcomeKind.SIGNALED, signal=crash.signal, evidence=text[start:end])
            for entry in self._index.shown_by_crash(outcome):
                self._add_match(entry, LogFault(line, _crash_on_one_line(crash)))
        for entry, found in self._index.shown_by_text(text):
            self._add_match(entry, LogFault(at(found.start()), found[0].partition("\n")[0].strip()))

    def _add_match(self, entry: Entry, fault: LogFault, lacks: str = "") -> None:
        seen = self.found.setdefault((entry.failure.id, entry.signature.name, lacks), {})
        if len(seen) < CHAINS:
            seen[fault.line] = (entry, fault)

    def _add_consequence(self, fault: LogFault) -> None:
        if len(self.follows) < LISTED:
            self.follows[fault.line] = fault


def match(chunks: Iterable[str], failures: Iterable[Failure]) -> Reading:
    """Return the faults of a log, given as its text in parts of any size (matrix.verdicts.lines.texts).

    Signatures marked `own` are left out.
    """
    index = SignatureIndex(failures)
    reader, last = _Reader(index), 0
    excerpts = Excerpts(chunks, Triggers([*_TRIGGERS, *index.types, *index.words()]))
    for number, text in excerpts:
        if number > last + 1:
            reader.end()
        reader.take(number, text)
        last = number
    reader.close(excerpts.lines, is_cut=excerpts.is_cut)
    known = sorted(_known(reader), key=lambda one: (not one.certain, one.fault.line))
    return Reading(
        tuple(known),
        tuple(_unknown(reader, known))[:LISTED],
        tuple(_consequences(reader))[:LISTED],
        excerpts.lines,
        reader.root_rank if reader.root_rank != -1 else None,
        tuple(_similar(reader, known))[:LISTED],
    )


def _known(reader: _Reader) -> Iterator[Sighting]:
    codes = {crash.exit_code for crash in reader.crashes.values() if crash.exit_code is not None}
    sightings: dict[str, tuple[bool, bool, int, Sighting]] = {}
    for (_, _, lacks), seen in reader.found.items():
        entry, fault = seen[min(seen)]
        signature = entry.signature
        if signature.exit_code is not None and codes and signature.exit_code not in codes:
            continue  # the log has the ranks' exit statuses, and none is the signature's
        confirmed = not lacks and (signature.exit_code is None or signature.exit_code in codes)
        sighting = Sighting(entry.failure, signature, fault, confirmed and _key_count(signature) > 1, len(seen), lacks)
        ranked = (not sighting.certain, bool(lacks), fault.line, sighting)
        best = sightings.setdefault(entry.failure.id, ranked)
        if ranked[:3] < best[:3]:
            sightings[entry.failure.id] = ranked
    yield from (sighting for *_, sighting in sightings.values())


def _unknown(reader: _Reader, known: Sequence[Sighting]) -> Iterator[LogFault]:
    """Yield the faults that are neither known failures nor consequences: each text once, at its first line."""
    chains = [chain for chain in reader.chains.values() if not chain.is_known and not chain.follows]
    faults = [chain.fault for chain in chains if not chain.alone]
    seen = {line for lines in reader.found.values() for line in lines}
    signals = {one.signature.signal for one in known if one.signature.signal}
    printed = {line: one for line, one in reader.crashes.items() if one.printer not in ("torchrun", "mpirun")}
    # A launcher repeats a crash that its rank printed, and so does a second printer.
    launched = {line: one for line, one in reader.crashes.items() if one.signal or not reader.chains}
    crashes = printed or ({} if known or faults else launched)
    for line, crash in crashes.items():
        if line not in seen and crash.signal not in signals:
            faults.append(LogFault(line, _crash_on_one_line(crash)))
    # Without anything else, an exception that has no traceback counts: a log may have its last line alone.
    yield from _distinct(faults or ([] if known else [chain.fault for chain in chains]))


def _similar(reader: _Reader, known: Sequence[Sighting]) -> Iterator[Similar]:
    """Yield each failure that is not known to be in the log once, at the first exception that resembles it."""
    listed = {one.failure.id for one in known}
    for chain in reader.chains.values():
        for similar in chain.similar if not chain.is_known else ():
            if similar.failure.id not in listed:
                listed.add(similar.failure.id)
                yield similar


def _consequences(reader: _Reader) -> Iterator[LogFault]:
    faults = [chain.fault for chain in reader.chains.values() if chain.follows and not chain.is_known]
    yield from _distinct([*faults, *reader.follows.values()])


def _distinct(faults: Iterable[LogFault]) -> Iterable[LogFault]:
    """Return the first fault of each text, numbers aside, ordered by line."""
    first: dict[str, LogFault] = {}
    for fault in sorted(faults, key=lambda one: one.line):
        first.setdefault(re.sub(r"\d+", "#", fault.what), fault)
    return first.values()


def _is_consequence(text: str) -> bool:
    """Return whether a message is of a rank that lost another one, or waited for it in vain."""
    return bool(CASCADE.search(text) or _WAITED.search(text))


def _key_count(signature: Signature) -> int:
    return sum(value is not None for name, value in vars(signature).items() if name not in ("name", "own"))


def _one_line(raised: Raised) -> str:
    frame = raised.frames[-1] if raised.frames else None
    joined = replace(raised, message=" ".join(raised.message.split("\n")))
    return headline(joined) + (f" (in {frame.function}, {frame.file}:{frame.line})" if frame else "")


def _crash_on_one_line(crash: NativeCrash) -> str:
    end = crash.signal or (f"exit status {crash.exit_code}" if crash.exit_code is not None else "a crash")
    place = next((name for name in crash.frames if "::" in name), crash.frames[0] if crash.frames else "")
    return f"{end}, reported by {crash.printer}" + (f", in {place}" if place else "")
