"""What upstream's history has for a traceback: the releases it may be of, changes that may be the fix or the cause.

All of it is offered as history: that a commit changed a function proves nothing about a failure.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from matrix.ground.verdicts.outcome import Frame, Raised
from matrix.read.history.index import (
    MADE,
    Change,
    Commit,
    SourceFile,
    UpstreamHistory,
    hash_of_line,
    hash_of_word,
    histories,
    words_of,
)

INNERMOST: Final = 4  # upstream frames whose functions are looked at
MOST: Final = 3  # commits offered
_FIX: Final = re.compile(
    r"(?i)\bfix(?:e[sd])?\b|\bbug\b|\bcorrect|\bhandle|\bavoid|\bprevent|\bguard|\bsupport|\ballow"
)
_IDLE: Final = re.compile(
    r"(?i)copyright|\bformat|lint|typo|docs?:|docstring|\bisort|type hint|refactor|rename|clean|black\b"
)
_HOLE: Final = re.compile(r"\{\}")
TEXT: Final = 12  # characters of a message's constant text, without which it identifies nothing


@dataclass(frozen=True)
class Position:
    """A frame in a source file that upstream's history knows."""

    history: UpstreamHistory
    file: SourceFile
    path: str
    frame: Frame

    def stands_in(self, release: int) -> bool:
        """Return whether a release has this line: its function there, and the printed source."""
        if not self.file.releases(self.path) >> release & 1:
            return False
        lines, function = self.file.lines(release), self.frame.function.rpartition(".")[2]
        if not 0 < self.frame.line <= len(lines):
            return False
        line = lines[self.frame.line - 1]
        named = line.function.rpartition(".")[2] or "<module>"
        inner = function.startswith("<") and function != "<module>"  # a lambda, a comprehension
        same_source = not self.source or hash_of_line(self.source) == line.hash
        return same_source and (inner or function == named)

    @property
    def source(self) -> str:
        """Return the printed source line, "" where the log has none."""
        return str(vars(self.frame).get("source", ""))

    def functions(self, releases: Sequence[int]) -> list[str]:
        """Return the qualified names that the frame may be of."""
        lines = [self.file.lines(release) for release in releases]
        known = [rows[self.frame.line - 1].function for rows in lines if 0 < self.frame.line <= len(rows)]
        function = self.frame.function.rpartition(".")[2].replace("<module>", "")
        named = [name for name in self.file.names if name.rpartition(".")[2] == function]
        return list(dict.fromkeys(known)) or (named if len(named) < MOST else [])


@dataclass(frozen=True)
class Offer:
    """A commit that history offers, why, and the function that it changed."""

    commit: Commit
    function: str
    reason: str
    score: float


@dataclass(frozen=True)
class Offered:
    """What the history of one project has for an exception.

    `releases`: those that it may be of; `inferred`: from the lines of the traceback. `fixes`: later changes, the
    likeliest first; `cause`: the change before. `message`: whether upstream still has the error message.
    """

    history: UpstreamHistory
    releases: tuple[str, ...]
    inferred: bool
    function: str
    fixes: tuple[Offer, ...]
    cause: Offer | None
    message: str

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "repository": self.history.repository,
            "until": self.history.until,
            "releases": list(self.releases),
            "inferred": self.inferred,
            "function": self.function,
            "fixes": [in_words(offer) for offer in self.fixes],
            "cause": in_words(self.cause) if self.cause else "",
            "message": self.message,
        }


def positions(frames: Iterable[Frame]) -> list[Position]:
    """Return the frames that are in sources of an upstream project, outermost first."""
    found = []
    for frame in frames:
        for history in histories() if re.search(r"megatron|transformer_engine|tools|\.py$", frame.file) else ():
            if path := history.path_of(frame.file):
                position = Position(history, history.file(path), path, frame)
                own = path.startswith("tools/") and not any(map(position.stands_in, range(len(history.releases))))
                found += [] if own else [position]  # a program's own folder may be named so
                break
    return found


def releases_of(found: Sequence[Position], history: UpstreamHistory) -> tuple[int, ...]:
    """Return the releases in which all frames of a project stand, by number; none for a fork or an unreleased commit.

    A script may be of another checkout than the installed package: where both contradict, the package counts.
    """
    own = [position for position in found if position.history is history]
    packaged = [position for position in own if position.path.startswith(("megatron/core/", "transformer_engine/"))]
    for part in (own, packaged):
        possible = [k for k in range(len(history.releases)) if part and all(one.stands_in(k) for one in part)]
        if possible:
            return tuple(possible)
    return ()


def inferred(raised: Iterable[Raised]) -> Mapping[str, tuple[str, ...]]:
    """Return component -> the releases in which all lines of the tracebacks stand, where there are any."""
    found = positions(frame for one in raised for frame in one.frames)
    projects = dict.fromkeys(position.history for position in found)
    numbers = {history: releases_of(found, history) for history in projects}
    return {history.component: tuple(history.releases[k] for k in some) for history, some in numbers.items() if some}


def offered(raised: Raised, stated: Mapping[str, Iterable[str]], known: Mapping[str, Sequence[str]]) -> Offered | None:
    """Return what history has for an exception, None without an upstream frame.

    `stated` are the versions that the log names, `known` those inferred from all of its tracebacks.
    """
    found = positions(raised.frames)
    if not found:
        return None
    history = found[-1].history
    found = [position for position in found if position.history is history][-INNERMOST:]
    named = [version.removesuffix(".0") for version in stated.get(history.component, ())]
    texts = {version.removesuffix(".0"): version for version in history.releases}
    versions = [texts[one] for one in named if one in texts] or list(known.get(history.component, ()))
    numbers = [history.releases.index(version) for version in versions]
    offers = list(_offers(history, found, raised, numbers))
    fixes = sorted((one for later, one in offers if later), key=lambda one: -one.score)
    causes = sorted((one for later, one in offers if not later), key=lambda one: (-one.score, one.commit.date))
    best = list({one.commit.subject: one for one in reversed(fixes)}.values())[::-1][:MOST]
    functions = found[-1].functions(numbers)
    return Offered(
        history,
        tuple(versions),
        bool(versions) and not named,
        f"{found[-1].path}:{next(iter(functions), found[-1].frame.function) or '<module>'}",
        tuple(best),
        causes[0] if causes and numbers else None,
        _message(history, found, raised.message, numbers),
    )


def _offers(
    history: UpstreamHistory, found: Sequence[Position], raised: Raised, numbers: Sequence[int]
) -> Iterator[tuple[bool, Offer]]:
    """Yield (whether it is later than the release, the offer) of each change of the functions on the traceback."""
    error = words_of(f"{raised.message} {found[-1].source}")
    about = error | words_of(" ".join(position.frame.function for position in found)) - {
        "__init__",
        "forward",
        "_call_impl",
    }
    for depth, position in enumerate(reversed(found)):
        for function in position.functions(numbers):
            for change in position.file.changes(function):
                commit = history.commit_of(change.commit)
                if change.kind == MADE and numbers and commit.releases == ():
                    continue
                later = not numbers or not history.has(change.commit, numbers[0])
                score, reason = _weigh(history, change, commit, position, error, about, later)
                yield later, Offer(commit, function or "<module>", reason, score - 1.2 * depth)


def _weigh(
    history: UpstreamHistory,
    change: Change,
    commit: Commit,
    position: Position,
    error: set[str],
    about: set[str],
    later: bool,
) -> tuple[float, str]:
    """Return how likely a change is the fix, or the cause, and why."""
    subject, score, reasons = words_of(commit.subject), 0.0, []
    rarity = _rarity(history)
    if position.source and hash_of_line(position.source) in change.removed and later:
        score, reasons = score + 3, ["it changed the printed line"]
    lowered = {word.lower() for word in about}
    shared = [word for word in subject if word.lower() in lowered]
    score += sum(rarity(word.lower()) for word in shared)
    touched = [word for word in error if hash_of_word(word) in change.words]
    score += min(3.0, 0.8 * len(touched))
    named = dict.fromkeys([*shared, *touched])
    reasons += [f"it is about {', '.join(list(named)[:MOST])}"] if named else []
    score += 1.5 * bool(_FIX.search(commit.subject)) - 2 * bool(_IDLE.search(commit.subject))
    score -= 3 * (commit.reverted_by is not None) + 0.5 * (change.kind == MADE)
    return score, "; ".join(reasons) or "it changed the function"


@cache
def _rarity(history: UpstreamHistory) -> Any:
    """Return a function of a word: how much it identifies, by the subjects that have it."""
    subjects = history.subjects
    counts = Counter(word.lower() for subject in subjects for word in words_of(subject))
    return lambda word: 0.35 * math.log(len(subjects) / (1 + counts[word]))


def _message(history: UpstreamHistory, found: Sequence[Position], message: str, numbers: Sequence[int]) -> str:
    """Return whether the newest release still has the error message, "" where no source line has it."""
    newest = len(history.releases) - 1
    first = " ".join(message.split())
    for position in reversed(found):
        for function, text, bits in position.file.messages:
            parts = [part.strip() for part in _HOLE.split(text)]
            if max(map(len, parts)) < TEXT or not re.match(".*?".join(map(re.escape, parts)), first):
                continue
            if bits >> newest & 1:
                return (
                    f"{history.releases[newest]}, the newest that is known, still has it, in {function or 'the module'}"
                )
            last = bits.bit_length() - 1
            gone = [
                history.commit_of(change.commit)
                for change in position.file.changes(function)
                if history.has(change.commit, last + 1) and not history.has(change.commit, last)
            ]
            by = f", by commit {gone[-1].id} ({gone[-1].subject})" if len(gone) == 1 else ""
            by = f", by one of {', '.join(commit.id for commit in gone[:5])}" if len(gone) > 1 else by
            return f"gone since {history.releases[last + 1]}{by}"
    return ""


def in_words(offer: Offer) -> str:
    """Return an offer in one line."""
    return f"{commit_in_words(offer.commit)}: {offer.reason}"


def commit_in_words(commit: Commit) -> str:
    """Return a commit in one line: id, date, subject, first release, what reverted it."""
    first = f"first in {commit.releases[0]}" if commit.releases else "in no release"
    picked = f" and {len(commit.releases) - 1} more" if len(commit.releases) > 1 else ""
    reverted = "; reverted later" if commit.reverted_by is not None else ""
    return f'{commit.id} of {commit.date}, {sort_of(commit)}"{commit.subject}", {first}{picked}{reverted}'


def sort_of(commit: Commit) -> str:
    """Return what a subject calls its commit: a revert, a fix or a refactoring; "" for anything else."""
    if re.search(r"(?i)\brevert", commit.subject):
        return "a revert: "
    if re.search(r"(?i)\bfix|\bbug", commit.subject):
        return "a fix: "
    return "a refactoring: " if re.search(r"(?i)refactor|rename|clean", commit.subject) else ""
