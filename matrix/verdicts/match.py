"""Find the known failures that a log shows: parse its exceptions and native crashes, compare them with the signatures.

A signature is not searched in the text of the whole log: its message is searched in each exception, its stack in each
printed crash. A log that only quotes a failure does not show it. It is read once, line by line, in bounded memory.
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
from matrix.verdicts.outcome import EVIDENCE, Outcome, OutcomeKind, Raised
from matrix.verdicts.signature import shows
from matrix.verdicts.tracebacks import HEADER, LoggedException, Tracebacks

STREAMS: Final = 512  # ranks whose lines are kept apart at a time; each takes at most EVIDENCE characters
LISTED: Final = 20  # unknown faults, and consequences, in a result
CHAINS: Final = 10_000  # tracebacks remembered, to decide which have a known cause

_ESCAPE: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")
# Prefixes that launchers and log collectors add to each line: a rank (torchrun, mpirun, srun), a time, a level.
_BEFORE: Final = re.compile(
    r"(?P<rank>\[(?:rank|default)\d+\]: ?|\[\d+,\d+\]<std(?:out|err)>: ?|\d{1,6}: )"
    r"|\[?\d{4}[-/]\d\d[-/]\d\d[T _]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?:? ?(?:std(?:out|err) [FP] )?"
    r"(?:\[?(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL)\]?:? )?"
)
_PREFIX: Final = 200  # longest prefix of a traceback's first line that is then removed from the other lines, characters

# A window without any of these holds no printed crash (matrix/verdicts/crash.py).
_CRASH: Final = (
    "Process received signal", "Caught signal", "Fatal Python error", "terminate called", ", PID: ", "*** ",
    "exitcode", "Exit code:", "exited on",
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

    `certain`: two or more keys of the signature hold in one exception or crash. Otherwise it is likely.
    """

    failure: Failure
    signature: Signature
    fault: LogFault
    certain: bool
    times: int = 1

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "failure": self.failure.id,
            "title": self.failure.title,
            "confidence": "certain" if self.certain else "likely",
            "signature": self.signature.name,
            "line": self.fault.line,
            "text": self.fault.what,
            "times": self.times,
            "affected": [{"where": str(rule), "reason": rule.reason} for rule in self.failure.affected],
            "fix": " ".join(self.failure.fix.split()),
            "workarounds": [{"text": one.text, "verified": one.verified} for one in self.failure.workaround],
            "references": list(self.failure.references),
        }


@dataclass(frozen=True)
class Reading:
    """The faults of a log: failures of the catalog, unknown faults, and consequences of other faults (`follows`).

    `root_rank` is the rank that torchrun names as the first to fail, None where it names none.
    """

    known: tuple[Sighting, ...]
    unknown: tuple[LogFault, ...]
    follows: tuple[LogFault, ...]
    lines: int
    root_rank: int | None = None


@dataclass
class _Stream:
    """The last lines of one rank: a window of at most EVIDENCE characters."""

    tracebacks: Tracebacks
    number: int
    window: deque[tuple[int, str]] = field(default_factory=deque)
    size: int = 0
    crashed: bool = False


class _Reader:
    def __init__(self, failures: Sequence[Failure]) -> None:
        self._failures = failures
        entries = [(failure, signature) for failure in failures for signature in failure.signature if not signature.own]
        self._of_exceptions = [one for one in entries if _needs_exception(one[1])]
        self._of_crashes = [one for one in entries if not _needs_exception(one[1])]
        self._types = {signature.exception for _, signature in entries if signature.exception}
        self._streams: OrderedDict[str, _Stream] = OrderedDict()
        self._opened = 0
        self._shapes: deque[re.Pattern[str]] = deque(maxlen=16)  # prefixes of this log's lines
        self.found: dict[tuple[str, str], dict[int, tuple[Failure, Signature, LogFault]]] = {}
        self.chains: dict[tuple[int, int], tuple[LogFault, bool, bool]] = {}  # (first fault, it is known, it follows)
        self.crashes: dict[int, NativeCrash] = {}
        self.follows: dict[int, LogFault] = {}
        self.root_rank: int | None = None
        self.shown_by = lru_cache(maxsize=1024)(self._shown_by)

    def take(self, number: int, line: str) -> None:
        """Process one line of the log."""
        tags, text = self._without_prefix(_ESCAPE.sub("", line) if "\x1b" in line else line)
        stream = self._stream(tags)
        for logged in stream.tracebacks.take(number, text):
            self._add_exception(stream, logged)
        if any(words in text for words in _CONSEQUENCES):
            self._add_consequence(LogFault(number, text.strip()))
        elif _ROOT in text:
            self.root_rank = -1
        elif self.root_rank == -1 and (rank := _ROOT_RANK.match(text)):
            self.root_rank = int(rank[1])
        if stream.window and stream.window[-1][1] == text:
            return  # a repeated line: scanning a window of a thousand equal lines takes quadratic time
        stream.window.append((number, text))
        stream.size += len(text) + 1
        stream.crashed = stream.crashed or any(words in text for words in _CRASH)
        if stream.size > EVIDENCE:
            self._search_window(stream)
            while stream.size > EVIDENCE // 2:  # the other half is searched again: a crash may span both
                stream.size -= len(stream.window.popleft()[1]) + 1
            stream.crashed = any(words in kept for _, kept in stream.window for words in _CRASH)

    def close(self) -> None:
        """Process the remaining windows; call it after the last line."""
        for stream in self._streams.values():
            self._end(stream)

    def _end(self, stream: _Stream) -> None:
        for logged in stream.tracebacks.close():
            self._add_exception(stream, logged)
        self._search_window(stream)

    def _without_prefix(self, text: str) -> tuple[str, str]:
        """Return the rank tags of a line, "" if it has none, and the line without its prefix."""
        tags = ""
        while text[:1] in "[0123456789" and (before := _BEFORE.match(text)) and before.end():
            tags += (before["rank"] or "").strip()
            text = text[before.end() :]
        place = text.find(HEADER, 0, _PREFIX)
        if place > 0 and (prefix := text[:place].removesuffix("Original ")):
            shape = re.compile(re.sub(r"\d+", r"\\d+", re.escape(prefix)))
            if shape not in self._shapes:
                self._shapes.append(shape)
        for shape in self._shapes:
            if found := shape.match(text):
                return tags, text[found.end() :]
        return tags, text

    def _stream(self, tags: str) -> _Stream:
        if stream := self._streams.get(tags):
            self._streams.move_to_end(tags)
            return stream
        if len(self._streams) >= STREAMS:
            self._end(self._streams.popitem(last=False)[1])
        self._opened += 1
        stream = self._streams[tags] = _Stream(Tracebacks(self._types), self._opened)
        return stream

    def _add_exception(self, stream: _Stream, logged: LoggedException) -> None:
        fault = LogFault(logged.line, _one_line(logged.raised))
        owners = self.shown_by(logged.raised)
        for failure, signature in owners:
            self._add_match(failure, signature, fault)
        consequence = logged.raised.type in _PEER_ERRORS or _is_consequence(logged.raised.message)
        chain = (stream.number, logged.chain)
        if chain in self.chains or len(self.chains) < CHAINS:
            first, known, follows = self.chains.get(chain, (fault, False, consequence))
            first = fault if follows and not consequence else first
            self.chains[chain] = (first, known or bool(owners), follows and consequence)

    def _shown_by(self, raised: Raised) -> list[tuple[Failure, Signature]]:
        """Return the failures that an exception shows, each with the first signature that holds."""
        outcome, owners = Outcome(OutcomeKind.RAISED, chain=(raised,)), {}
        for failure, signature in self._of_exceptions:
            if failure.id not in owners and shows(outcome, signature):
                owners[failure.id] = (failure, signature)
        return list(owners.values())

    def _search_window(self, stream: _Stream) -> None:
        """Compare a window with the signatures of native crashes and of log text."""
        text = "".join(f"{line}\n" for _, line in stream.window)

        def at(offset: int) -> int:
            return stream.window[text.count("\n", 0, offset)][0]

        printed = located(text) if stream.crashed else []
        ends = [start for start, _ in printed[1:]] + [len(text)]
        for (start, crash), end in zip(printed, ends, strict=False):
            line = at(start)
            if crash.signal == "SIGTERM" or (crash.printer == "terminate" and _is_consequence(text[start:end])):
                self._add_consequence(LogFault(line, _crash_on_one_line(crash)))
                continue
            self.crashes[line] = crash
            outcome = Outcome(OutcomeKind.SIGNALED, signal=crash.signal, evidence=text[start:end])
            for failure, signature in self._of_crashes:
                if signature.log is None and shows(outcome, signature):
                    self._add_match(failure, signature, LogFault(line, _crash_on_one_line(crash)))
        for failure, signature in self._of_crashes:
            if signature.log is not None and (found := re.search(signature.log, text)):
                line = at(found.start())
                self._add_match(failure, signature, LogFault(line, found[0].partition("\n")[0].strip()))

    def _add_match(self, failure: Failure, signature: Signature, fault: LogFault) -> None:
        seen = self.found.setdefault((failure.id, signature.name), {})
        if len(seen) < CHAINS:
            seen[fault.line] = (failure, signature, fault)

    def _add_consequence(self, fault: LogFault) -> None:
        if len(self.follows) < LISTED:
            self.follows[fault.line] = fault


def match(lines: Iterable[tuple[int, str]], failures: Iterable[Failure]) -> Reading:
    """Return the faults of a log; signatures marked `own` are left out.

    `lines` holds the number and text of each line (matrix.verdicts.lines).
    """
    reader, last = _Reader(list(failures)), 0
    for number, text in lines:
        reader.take(number, text)
        last = number
    reader.close()
    known = sorted(_known(reader), key=lambda one: (not one.certain, one.fault.line))
    return Reading(
        tuple(known),
        tuple(_unknown(reader, known))[:LISTED],
        tuple(_consequences(reader))[:LISTED],
        last,
        reader.root_rank if reader.root_rank != -1 else None,
    )


def _known(reader: _Reader) -> Iterator[Sighting]:
    codes = {crash.exit_code for crash in reader.crashes.values() if crash.exit_code is not None}
    sightings: dict[str, Sighting] = {}
    for seen in reader.found.values():
        failure, signature, fault = seen[min(seen)]
        if signature.exit_code is not None and codes and signature.exit_code not in codes:
            continue  # the log has the ranks' exit statuses, and none is the signature's
        confirmed = signature.exit_code is None or signature.exit_code in codes
        sighting = Sighting(failure, signature, fault, confirmed and _key_count(signature) > 1, len(seen))
        best = sightings.get(failure.id)
        if best is None or (not sighting.certain, fault.line) < (not best.certain, best.fault.line):
            sightings[failure.id] = sighting
    yield from sightings.values()


def _unknown(reader: _Reader, known: Sequence[Sighting]) -> Iterator[LogFault]:
    """Yield the faults that are neither known failures nor consequences: each text once, at its first line."""
    faults = [fault for fault, is_known, follows in reader.chains.values() if not is_known and not follows]
    seen = {line for lines in reader.found.values() for line in lines}
    signals = {one.signature.signal for one in known if one.signature.signal}
    printed = {line: one for line, one in reader.crashes.items() if one.printer not in ("torchrun", "mpirun")}
    # A launcher repeats a crash that its rank printed, and so does a second printer.
    launched = {line: one for line, one in reader.crashes.items() if one.signal or not reader.chains}
    crashes = printed or ({} if known or faults else launched)
    for line, crash in crashes.items():
        if line not in seen and crash.signal not in signals:
            faults.append(LogFault(line, _crash_on_one_line(crash)))
    yield from _distinct(faults)


def _consequences(reader: _Reader) -> Iterator[LogFault]:
    faults = [fault for fault, is_known, follows in reader.chains.values() if follows and not is_known]
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


def _needs_exception(signature: Signature) -> bool:
    return any(key is not None for key in (signature.exception, signature.message, signature.frame))


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
