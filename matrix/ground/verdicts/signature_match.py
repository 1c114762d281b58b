"""Comparison of outcomes with signatures, and the index of all failures' signatures by what shows them.

It fails closed: a key without evidence does not match.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from matrix.ground.catalog.failure import Failure, Signature
from matrix.ground.catalog.schema import literals, long_texts, longest_text
from matrix.ground.verdicts.crash import crashes
from matrix.ground.verdicts.outcome import Frame, Outcome, OutcomeKind, Raised
from matrix.ground.verdicts.text import is_of_stack, names_in

BEGUN: Final = 16  # characters of a message that is cut which must agree with a signature
ALIKE: Final = 0.8  # share of a signature's words that a similar message has
FEWEST_WORDS: Final = 6  # of a signature, below which a share means nothing
_WORD: Final = re.compile(r"\w+")


@dataclass(frozen=True)
class Entry:
    """One signature of one failure."""

    failure: Failure
    signature: Signature

    @property
    def of_exception(self) -> bool:
        """Return whether only an exception can show it."""
        return any((self.signature.exception, self.signature.message, self.signature.place))

    @property
    def of_crash(self) -> bool:
        """Return whether only a printed crash can show it."""
        return self.signature.signal is not None or self.signature.stack is not None

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """Return what every message that it matches contains."""
        return literals(self.signature.message or "")

    @cached_property
    def longest_text(self) -> str:
        """Return the longest of these texts, whose absence excludes nearly every other message."""
        return longest_text(self.signature.message or "")

    @cached_property
    def words(self) -> frozenset[str]:
        """Return the words of these texts."""
        return frozenset(_WORD.findall(" ".join(self.texts)))

    def message_in(self, message: str) -> str:
        """Return the text of a message that the signature requires, "" where it has none: evidence without a frame."""
        pattern = self.signature.message
        if pattern is None or not all(text in message for text in self.texts):
            return ""
        text_match = re.search(pattern, message)
        return text_match[0] if text_match else ""

    def names_stack(self, raised: Raised) -> bool:
        """Return whether what it compares of an exception is evidence of the stack: its message, or the function.

        A failure that is the same in any program needs none.
        """
        place = self.signature.frame or self.signature.through or ""
        function = place.rpartition(":")[2] if raised.frames else ""
        message = self.message_in(raised.compared) or raised.message if self.signature.message else ""
        return self.signature.any_program or is_of_stack(f"{message} {function}")

    @cached_property
    def text_names_stack(self) -> bool:
        """Return whether a crash or a text that it matches is evidence of the stack."""
        texts = [self.signature.stack or "", *literals(self.signature.log or "")]
        return self.signature.any_program or is_of_stack(" ".join(texts))

    def completions(self, message: str) -> Iterator[str]:
        """Yield what a message that is cut may have been, by the texts of the signature.

        Between them is nothing or a number.
        """
        for index, text in enumerate(self.texts):
            length = _overlap(message, text)
            if length >= BEGUN:
                yield from (message + gap.join([text[length:], *self.texts[index + 1 :]]) for gap in ("", "1"))


class SignatureIndex:
    """The signatures that logs can show: those that are marked `own` are left out."""

    def __init__(self, failures: Iterable[Failure]) -> None:
        entries = [Entry(failure, mark) for failure in failures for mark in failure.signature if not mark.own]
        self._by_type: dict[str | None, list[Entry]] = {}
        for entry in entries:
            if entry.of_exception:
                self._by_type.setdefault(entry.signature.exception, []).append(entry)
        self._of_crashes = [entry for entry in entries if entry.of_crash and not entry.of_exception]
        self._of_logs = [entry for entry in entries if not entry.of_crash and not entry.of_exception]
        self.types = frozenset(name for name in self._by_type if name)

    def choices(self) -> Iterator[list[str]]:
        """Yield for each `log` signature texts that must all be in a log: long ones, or the longest; "" for none."""
        for entry in self._of_logs:
            yield long_texts(entry.signature.log or "")

    def _candidates(self, raised: Raised) -> Iterator[Entry]:
        yield from self._by_type.get(raised.type, ())
        yield from self._by_type.get(None, ())

    def shown_by(self, raised: Raised) -> list[Entry]:
        """Return the failures that an exception shows, each with the first signature that holds."""
        outcome, message = Outcome(OutcomeKind.RAISED, chain=(raised,)), raised.compared
        return _first(
            entry
            for entry in self._candidates(raised)
            if entry.longest_text in message and shows(outcome, entry.signature)
        )

    def partly_shown_by(self, raised: Raised) -> list[Entry]:
        """Return the failures whose type and message an exception without frames has.

        A message that many programs can raise is not enough where the signature requires a frame.
        """
        return _first(
            entry
            for entry in self._candidates(raised)
            if (text := entry.message_in(raised.compared)) and (not entry.signature.place or names_in(text))
        )

    def begun_by(self, raised: Raised) -> list[Entry]:
        """Return the failures that an exception may show whose message is cut."""
        return _first(
            entry
            for entry in self._candidates(raised)
            for message in entry.completions(raised.message)
            for whole in [replace(raised, message=message)]
            if entry in (self.shown_by(whole) if raised.frames else self.partly_shown_by(whole))
        )

    def raised_in(self, frame: Frame) -> list[Entry]:
        """Return the failures whose exception is raised in a frame."""
        entries = (entry for entries in self._by_type.values() for entry in entries)
        return _first(entry for entry in entries if entry.signature.frame and is_at(frame, entry.signature.frame))

    def similar_to(self, raised: Raised) -> list[tuple[Entry, str]]:
        """Return the failures that an exception resembles and does not show, and how it differs, the nearest first."""
        ranked: list[tuple[float, Entry, str]] = []
        message = raised.compared
        words = frozenset(_WORD.findall(message))
        for entry in self._candidates(raised):
            mark = entry.signature
            if mark.place and entry.message_in(message):
                frame = raised.frames[-1] if raised.frames else None
                origin = f"raised in {frame.file}:{frame.function}" if frame else "the log lacks the frames"
                ranked.append((1.0, entry, f"{origin}; the known failure is raised {mark.place}"))
            elif len(entry.words) >= FEWEST_WORDS and not entry.message_in(message):
                share = len(words & entry.words) / len(entry.words)
                names = set(filter(is_of_stack, entry.words))
                if share >= ALIKE and (names & words or not names):
                    missing = ", ".join(sorted(entry.words - words)) or "the order of its words"
                    ranked.append((share, entry, f"another message: without {missing}"))
        return [(entry, differs) for _, entry, differs in sorted(ranked, key=lambda one: -one[0])]

    def shown_by_crash(self, outcome: Outcome) -> list[Entry]:
        """Return the failures that a printed crash shows, each with the first signature that holds."""
        return _first(entry for entry in self._of_crashes if shows(outcome, entry.signature))

    def shown_by_text(self, text: str) -> Iterator[tuple[Entry, re.Match[str]]]:
        """Yield the signatures that a part of a log shows, each with its first match."""
        for entry in self._of_logs:
            pattern = entry.signature.log or ""
            if all(part in text for part in literals(pattern)) and (text_match := re.search(pattern, text)):
                yield entry, text_match


def _first(entries: Iterable[Entry]) -> list[Entry]:
    """Return the first entry of each failure."""
    by_failure: dict[str, Entry] = {}
    for entry in entries:
        by_failure.setdefault(entry.failure.id, entry)
    return list(by_failure.values())


def _overlap(text: str, other: str) -> int:
    """Return how many characters at the end of `text` are the start of `other`."""
    longest = min(len(text), len(other))
    return next((length for length in range(longest, 0, -1) if text.endswith(other[:length])), 0)


# An outcome of these kinds holds nothing to compare with a signature.
SILENT = (OutcomeKind.PASSED, OutcomeKind.NOT_REACHED, OutcomeKind.UNAVAILABLE)


def matched(failure: Failure, outcome: Outcome) -> Signature | None:
    """Return the first signature of `failure` that `outcome` shows, None if it shows none."""
    if outcome.kind in SILENT:
        return None
    return next((signature for signature in failure.signature if shows(outcome, signature)), None)


def owner(failures: Iterable[Failure], outcome: Outcome) -> Failure | None:
    """Return the first failure whose signature `outcome` shows."""
    return next((failure for failure in failures if matched(failure, outcome)), None)


def shows(outcome: Outcome, signature: Signature) -> bool:
    """Return whether every key of the signature holds; exception, message and frames must hold in one exception."""
    if signature.signal is not None and signature.signal not in died_of(outcome):
        return False
    if signature.stack is not None and not _crashed_in(outcome, signature.stack, signature.signal):
        return False
    if signature.exit_code is not None and outcome.exit_code != signature.exit_code:
        return False
    if signature.log is not None and not re.search(signature.log, outcome.evidence):
        return False
    if signature.exception is None and signature.message is None and not signature.place:
        return True
    return any(_is(raised, signature) for raised in outcome.chain)


def died_of(outcome: Outcome) -> set[str | None]:
    """Return the signal that ended the run, from the supervisor; of a launcher that exited, those in its log."""
    if outcome.signal is None and outcome.kind is OutcomeKind.EXITED:
        return {crash.signal for crash in crashes(outcome.evidence)}
    return {outcome.signal}


def _crashed_in(outcome: Outcome, function: str, signal: str | None) -> bool:
    return any(crash.has_frame(function) and signal in (None, crash.signal) for crash in crashes(outcome.evidence))


def _is(raised: Raised, signature: Signature) -> bool:
    if signature.exception is not None and raised.type != signature.exception:
        return False
    if signature.message is not None and not re.search(signature.message, raised.compared):
        return False
    if signature.frame is not None and not any(is_at(frame, signature.frame) for frame in raised.frames[-1:]):
        return False
    return signature.through is None or any(is_at(frame, signature.through) for frame in raised.frames)


def is_at(frame: Frame, place: str) -> bool:
    """Return whether a frame is at "file.py:function"; the file is the end of a path."""
    file, _, function = place.rpartition(":")
    return frame.function == function and f"/{frame.file}".endswith(f"/{file}")
