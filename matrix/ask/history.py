"""What upstream's history has for a traceback: the releases it may be of, changes that may be the fix or the cause.

All of it is offered as history: that a commit changed a function proves nothing about a failure.
"""

from __future__ import annotations

import keyword
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, reduce
from operator import or_
from typing import Any, Final

from matrix.ground.catalog.stack import Stack
from matrix.ground.verdicts.outcome import Frame, Raised
from matrix.ground.verdicts.tracebacks import LoggedFrame
from matrix.read.history.index import (
    MADE,
    NAMESAKES,
    REMOVED,
    FunctionChange,
    SourceFile,
    UpstreamCommit,
    UpstreamHistory,
    hash_of_line,
    hash_of_word,
    histories,
    history_of,
    words_of,
)

INNERMOST: Final = 4  # upstream frames whose functions are looked at
MOST: Final = 3  # commits offered
NEAR, FAR = 1.5, 2.5  # against a function of the same class or function as one on the traceback, or of the same file
DEEPER: Final = 1.2  # against each frame further out
IDENTIFIER: Final = re.compile(r"_|[a-z][A-Z]")
VAGUE: Final = frozenset(
    ("__init__", "forward", "_call_impl", *keyword.kwlist, *["self", "must", "only", "when", "this", "that"])
)
PARSER: Final = 40  # options: a function that reads more of them reads any, such as the parser's checks
_FIX: Final = re.compile(
    r"(?i)\bfix(?:e[sd])?\b|\bbug\b|\bcorrect|\bhandle|\bavoid|\bprevent|\bguard|\bsupport|\ballow"
)
_IDLE: Final = re.compile(
    r"(?i)copyright|\bformat|lint|typo|docs?:|docstring|\bisort|type hint|refactor|rename|clean|black\b"
)
_CALLEE: Final = re.compile(r"\b(\w+(?:\.\w+)?)\(\)|\b([A-Z]\w+)' object")
_COPIED: Final = re.compile(
    r"(?i)^(?:adlr/megatron-lm!\d{1,9} - )?(?:(?:cp|cherry[- ]pick)\b:? {,9})?|[`'\"]| {,9}\(#?\d{1,9}\)| {1,9}into\b.*"
)
_ID: Final = re.compile(r"\b(?=[a-f]*\d)[0-9a-f]{7,40}\b")
_HOLE: Final = re.compile(r"\{\}")
# Of installed packages and Python's library, also where a log shortens the path.
_PACKAGED: Final = re.compile(r"-packages/|/lib/python3|^<|(?:^|/)(?:torch|triton|apex|flash_attn|deep_ep|numpy)/")
OF_ARGUMENTS: Final = ("TypeError", "AttributeError")  # errors that the caller's arguments may cause
TEXT: Final = 12  # characters of a message's constant text, without which it identifies nothing


@dataclass(frozen=True)
class UpstreamFrame:
    """A frame in a source file that upstream's history knows."""

    history: UpstreamHistory
    file: SourceFile
    path: str
    frame: Frame

    def stands_in(self, release: int) -> bool:
        """Return whether a release has this line: its function there, and the printed source."""
        if not self.file.releases(self.path) >> release & 1:
            return False
        line, function = self.file.line(release, self.frame.line), self.frame.function.rpartition(".")[2]
        if line is None:
            return False
        line_function = line.function.rpartition(".")[2] or "<module>"
        inner = function.startswith("<") and function != "<module>"  # a lambda, a comprehension
        same_source = not self.source or hash_of_line(self.source) == line.hash
        return same_source and (inner or function == line_function)

    @property
    def source(self) -> str:
        """Return the printed source line, "" where the log has none."""
        return self.frame.source if isinstance(self.frame, LoggedFrame) else ""

    def functions(self, releases: Sequence[int]) -> list[str]:
        """Return the qualified names that the frame may be of."""
        return self.file.functions_at(self.frame.function, self.frame.line, releases)

    @property
    def earliest(self) -> int:
        """Return the first release whose function of this name has the printed line, -1 where none has."""
        return _first(self.file.having(self.frame.function.rpartition(".")[2].replace("<module>", ""), self.source))

    @property
    def is_unknown(self) -> bool:
        """Return whether no commit up to the day of the index has the function: a newer one, or a fork's."""
        name = self.frame.function.rpartition(".")[2]
        return name[:1] != "<" and all(label.rpartition(".")[2] != name for label in self.file.names)


@dataclass(frozen=True)
class CommitOffer:
    """A commit that history offers, why, and the function that it changed."""

    commit: UpstreamCommit
    function: str
    reason: str
    score: float


@dataclass(frozen=True)
class Offered:
    """What the history of one project has for an exception.

    `releases`: those that it may be of; `inferred`: from the lines of the traceback. `earliest`: where they are not
    known, the latest of the releases in which a function, a printed line or the message is new; "" where that is not
    known. `fixes`: later changes, the likeliest first; `cause`: the change before. `changed_before`, `changed_later`:
    the last release up to this one in which the function changed, and the later ones. `message`: whether upstream still
    has the error message.
    """

    history: UpstreamHistory
    releases: tuple[str, ...]
    inferred: bool
    earliest: str
    function: str
    fixes: tuple[CommitOffer, ...]
    cause: CommitOffer | None
    changed_before: str
    changed_later: tuple[str, ...]
    message: str

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "repository": self.history.repository,
            "until": self.history.until,
            "releases": list(self.releases),
            "inferred": self.inferred,
            "earliest": self.earliest,
            "function": self.function,
            "fixes": [in_words(offer) for offer in self.fixes],
            "cause": in_words(self.cause) if self.cause else "",
            "changed_before": self.changed_before,
            "changed_later": list(self.changed_later),
            "message": self.message,
        }


def positions(frames: Iterable[Frame]) -> list[UpstreamFrame]:
    """Return the frames that are in sources of an upstream project, outermost first."""
    stack = []
    for frame in frames:
        for history in histories() if frame.file.endswith(".py") else ():
            if path := history.path_of(frame.file):
                position = UpstreamFrame(history, history.file(path), path, frame)
                is_stranger = path.startswith("tools/") and frame.function not in {
                    name.rpartition(".")[2] or "<module>" for name in position.file.names
                }
                stack += [] if is_stranger else [position]  # a program's own folder may be named so
                break
    return stack


def releases_of(stack: Sequence[UpstreamFrame], history: UpstreamHistory) -> tuple[int, ...]:
    """Return the releases in which all frames of a project stand, by number; none for a fork or an unreleased commit.

    A script may be of another checkout than the installed package: where both contradict, the package counts. Numbers
    of lines alone, without a printed source line, are those of some release by chance: they show none.
    """
    project_frames = [position for position in stack if position.history is history]
    package_frames = [
        position for position in project_frames if position.path.startswith(("megatron/core/", "transformer_engine/"))
    ]
    for part in (project_frames, package_frames) if any(position.source for position in project_frames) else ():
        possible = [k for k in range(len(history.releases)) if part and all(position.stands_in(k) for position in part)]
        if possible:
            return tuple(possible)
    return ()


def inferred(raised: Iterable[Raised]) -> Mapping[str, tuple[str, ...]]:
    """Return component -> the releases in which all lines of the tracebacks stand, where there are any."""
    stack = positions(frame for exception in raised for frame in exception.frames)
    projects = dict.fromkeys(position.history for position in stack)
    numbers = {history: releases_of(stack, history) for history in projects}
    return {
        history.component: tuple(history.releases[k] for k in releases)
        for history, releases in numbers.items()
        if releases
    }


def views(raised: Raised) -> Iterator[Raised]:
    """Yield an exception, and its part down to the last frame of the project that called the one which raised it.

    The caller may have passed a wrong argument; and of a project whose commits are not known, no fix is.
    """
    yield raised
    stack = positions(raised.frames)
    if stack and stack[-1].history.has_commits and raised.type not in OF_ARGUMENTS:
        return
    callers = [position.frame for position in stack if position.history is not stack[-1].history]
    if callers:
        yield replace(raised, frames=raised.frames[: raised.frames.index(callers[-1]) + 1])


def offered(raised: Raised, stated: Mapping[str, Iterable[str]], known: Mapping[str, Sequence[str]]) -> Offered | None:
    """Return what history has for an exception, None without an upstream frame.

    `stated` are the versions that the log names, `known` those inferred from all of its tracebacks.
    """
    stack = positions(raised.frames)
    if not stack or (_is_of_program(raised, stack[-1]) and raised.type not in OF_ARGUMENTS):
        return None
    history = stack[-1].history
    project = [position for position in stack if position.history is history]
    stack = project[-INNERMOST:]
    stated_versions = [] if history.component in known else list(stated.get(history.component, ()))
    found = [number for number in map(history.number_of_release, stated_versions) if number is not None]
    inferred_versions = known.get(history.component, ())
    numbers = found or [history.releases.index(version) for version in inferred_versions]
    versions = [history.releases[number] for number in numbers]
    place = _place(stack, raised.message)
    earliest = -1 if numbers else max([*(position.earliest for position in project), _first(place[1] if place else 0)])
    offers = list(_offers(history, stack, raised, numbers, numbers[0] if numbers else earliest))
    fixes = sorted((offer for later, offer in offers if later), key=lambda offer: -offer.score)
    causes = sorted(
        (offer for later, offer in offers if not later), key=lambda offer: (-offer.score, offer.commit.date)
    )
    best: dict[str, CommitOffer] = {}
    for offer in fixes:
        best.setdefault(original(offer.commit.subject), offer)
    functions, release = stack[-1].functions(numbers), numbers[0] if numbers else -1
    bits = stack[-1].file.changed_in(functions if numbers else ())
    changed = [number for number in range(1, len(history.releases)) if bits >> number & 1]
    return Offered(
        history,
        tuple(versions),
        bool(versions) and not stated_versions,
        history.releases[earliest] if earliest > 0 else "",
        f"{stack[-1].path}:{next(iter(functions), stack[-1].frame.function) or '<module>'}",
        tuple(best.values())[:MOST],
        causes[0] if causes and numbers else None,
        next((history.releases[number] for number in reversed(changed) if number <= release), ""),
        tuple(history.releases[number] for number in changed if number > release),
        _message(history, *place) if place else "",
    )


def likeliest(raised: Iterable[Raised], stacks: Sequence[Stack]) -> str:
    """Return the commit that one of two stacks has alone, and that probably brought an exception; "" without one."""
    for exception in raised:
        stack = positions(exception.frames)
        history = stack[-1].history if stack else None
        numbers = [history.number_of_release(str(side[history.component])) for side in stacks] if history else []
        old, new = numbers if None not in numbers and len({*numbers}) > 1 else (None, None)
        if history is None or old is None or new is None:
            continue
        stack = [position for position in stack if position.history is history][-INNERMOST:]
        offers = [
            offer
            for _, offer in _offers(history, stack, exception, [new], new)
            if history.has(offer.commit.number, old) != history.has(offer.commit.number, new)
        ]
        if offers:
            return in_words(max(offers, key=lambda offer: offer.score))
    return ""


def _is_of_program(raised: Raised, upstream: UpstreamFrame) -> bool:
    """Return whether upstream calls back a program of its own, which raises: no change of the caller mends that."""
    return raised.frames[-1] is not upstream.frame and not _PACKAGED.search(raised.frames[-1].file)


def _functions(
    history: UpstreamHistory, stack: Sequence[UpstreamFrame], message: str, numbers: Sequence[int]
) -> Iterator[tuple[SourceFile, str, bool, float, str]]:
    """Yield the functions on the traceback, the others of their files, and those that the message names.

    Each with its file, whether the error names it, what counts against it, and the source line that was printed.
    """
    for depth, position in enumerate(reversed(stack)):
        functions = [] if position.is_unknown else position.functions(numbers)
        scopes = {function.rpartition(".")[0] for function in functions} - {""}
        for name in position.file.names if not position.is_unknown else ():
            near = name in scopes or name.rpartition(".")[0] in scopes
            named, distance = name in functions, NEAR if near else FAR
            yield position.file, name, named, DEEPER * depth + distance * (not named), position.source if named else ""
    for text in dict.fromkeys(match[match.lastindex or 0] for match in _CALLEE.finditer(message)):
        files = history.defining(text.partition(".")[0])
        for file in files if len(files) < NAMESAKES else ():
            yield from ((file, name, True, 0.0, "") for name in file.names if name in (text, f"{text}.__init__"))


def _offers(
    history: UpstreamHistory, stack: Sequence[UpstreamFrame], raised: Raised, numbers: Sequence[int], release: int
) -> Iterator[tuple[bool, CommitOffer]]:
    """Yield (whether it is later than a release, the offer) of each change that may be the fix, or the cause.

    `release`: the first of `numbers`, or the earliest; -1 for none.
    """
    error = words_of(f"{raised.message} {stack[-1].source}") - VAGUE
    about = error | words_of(" ".join(position.frame.function for position in stack)) - VAGUE
    if re.search(r"(?:^|/)torch/", raised.frames[-1].file):
        about |= {"torch", "pytorch"}
    lowered, identifiers = parts_of(about), parts_of(word for word in about if IDENTIFIER.search(word))
    successors = history.releases[release + 1 :]

    def later(commit: UpstreamCommit) -> bool:  # what older releases have alone is neither before nor after
        return not history.has(commit.number, release) and (not commit.releases or commit.releases[-1] in successors)

    for file, function, named, penalty, source in _functions(history, stack, raised.message, numbers):
        for change in file.changes(function):
            commit = history.commit_of(change.commit)
            if change.kind == MADE and numbers and commit.releases == ():
                continue
            is_later = release < 0 or later(commit)
            score, reason = _weigh(history, commit, lowered, error, change, source if is_later else "")
            if named and is_later and change.kind == REMOVED and commit.reverted_by is None:
                score, reason = max(score, 0.0) + 0.5, reason or "it removed the function"
            if named or (reason and score > penalty):
                yield is_later, CommitOffer(commit, function, reason or "it changed the function", score - penalty)
    for number, words in enumerate(_subjects(history)):
        if not words.isdisjoint(identifiers) and (release < 0 or later(history.commit_of(number))):
            score, reason = _weigh(history, history.commit_of(number), identifiers)
            if score > FAR:
                yield True, CommitOffer(history.commit_of(number), "", reason, score - FAR)


def _weigh(
    history: UpstreamHistory,
    commit: UpstreamCommit,
    about: set[str],
    error: Iterable[str] = (),
    change: FunctionChange | None = None,
    source: str = "",
) -> tuple[float, str]:
    """Return how likely a commit is the fix, or the cause, by its subject and its change of a function, and why.

    `about` are words in lower case.
    """
    score, reasons, rarity = 0.0, [], _rarity(history)
    common = _subjects(history)[commit.number] & about
    shared = sorted(word for word in words_of(commit.subject) if word.lower() in common) if common else []
    score += sum(rarity(word.lower()) for word in shared)
    touched = sorted(word for word in error if change and hash_of_word(word) in change.words)
    score += min(3.0, sum(0.8 if IDENTIFIER.search(word) else 0.3 for word in touched))
    if change and source and hash_of_line(source) in change.removed:
        score, reasons = score + 3, ["it changed the printed line"]
    common_words = dict.fromkeys([*shared, *touched])
    reasons += [f"it is about {', '.join(list(common_words)[:MOST])}"] if common_words else []
    score += 1.5 * bool(_FIX.search(commit.subject)) - 2 * bool(_IDLE.search(commit.subject))
    score -= 3 * (commit.reverted_by is not None) + 0.5 * (change is not None and change.kind == MADE)
    return score, "; ".join(reasons)


def parts_of(words: Iterable[str]) -> set[str]:
    """Return words in lower case, and the parts of two words or more of names with underscores."""
    words = [word.lower() for word in words]
    split = [word.strip("_").split("_") for word in words]
    ends = [(names, k, end) for names in split for k in range(len(names)) for end in range(k + 2, len(names) + 1)]
    return {*words} | {"_".join(names[k:end]) for names, k, end in ends}


@cache
def _subjects(history: UpstreamHistory) -> list[set[str]]:
    return [{word.lower() for word in words_of(subject)} for subject in history.subjects]


@cache
def _rarity(history: UpstreamHistory) -> Callable[[str], float]:
    """Return a function of a word: how much it identifies, by the subjects that have it."""
    counts = Counter(word for words in _subjects(history) for word in words)
    return lambda word: 0.35 * math.log(len(history.subjects) / (1 + counts[word]))


def _place(stack: Sequence[UpstreamFrame], message: str) -> tuple[SourceFile, int, str] | None:
    """Return the file of a frame that raises a message, the releases in which it does, as bits, and the last function.

    None where no file has the message.
    """
    joined = " ".join(message.split())
    for position in reversed(stack):
        places = [(bits, function) for function, text, bits in position.file.messages if _is_of(text, joined)]
        if places:
            newest = max(places, key=lambda place: place[0].bit_length())  # it may have been in others before
            return position.file, reduce(or_, (bits for bits, _ in places)), newest[1]
    return None


def _is_of(text: str, message: str) -> bool:
    """Return whether a message begins with a text of the sources, in which {} is anything."""
    parts = [part.strip() for part in _HOLE.split(text)]
    return max(map(len, parts)) >= TEXT and bool(re.match(".*?".join(map(re.escape, parts)), message))


def _first(bits: int) -> int:
    """Return the first release of bits, by number, -1 for none."""
    return (bits & -bits).bit_length() - 1


def _message(history: UpstreamHistory, file: SourceFile, bits: int, function: str) -> str:
    """Return whether the newest release still has an error message, or since when its file lacks it."""
    last_release = bits.bit_length() - 1
    if last_release == len(history.releases) - 1:
        return f"{history.releases[-1]}, the newest that is known, still has it, in {function or 'the module'}"
    gone = [
        history.commit_of(change.commit)
        for change in file.changes(function)
        if history.has(change.commit, last_release + 1) and not history.has(change.commit, last_release)
    ]
    by = f", by commit {gone[-1].id} ({gone[-1].subject})" if len(gone) == 1 else ""
    by = f", by one of {', '.join(commit.id for commit in gone[:5])}" if len(gone) > 1 else by
    return f"gone from this file since {history.releases[last_release + 1]}{by}"


@dataclass(frozen=True)
class Repair:
    """A fix or a revert, a function that it changed, and the options of the job that this function reads."""

    commit: UpstreamCommit
    function: str
    options: tuple[str, ...]

    def __str__(self) -> str:
        return f"{commit_in_words(self.commit)}: {self.function} reads --{', --'.join(self.options)}"


@dataclass(frozen=True)
class RepairsBetween:
    """The fixes and reverts that one of two releases has and the other lacks, in functions that read a job's options.

    Functions that read few options, and options that few functions read, come first.
    """

    component: str
    versions: tuple[str, str]
    gained: tuple[Repair, ...] = ()
    lost: tuple[Repair, ...] = ()
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        versions = dict(zip(("from", "to"), self.versions, strict=True))
        repairs = {"gained": list(map(str, self.gained)), "lost": list(map(str, self.lost))}
        return {"component": self.component, **versions, **repairs, "note": self.note}


def repairs_between(component: str, versions: tuple[str, str], options: Iterable[str]) -> RepairsBetween | None:
    """Return the fixes and reverts between two versions, None of a component whose history is not known."""
    history = history_of(component)
    if history is None or not history.has_commits:
        return None
    numbers, notes = [history.number_of_release(version) for version in versions], []
    for version, number in zip(versions, numbers, strict=True):
        if number is None:
            return RepairsBetween(component, versions, note=f"{version} is not a release known up to {history.until}")
        if (tagged := history.tagged_before(number)) != number:
            counts_as = f"it counts as {history.releases[tagged]}"
            notes.append(f"the commits of {version} are not known, up to {history.until}: {counts_as}")
    older, newer = (number or 0 for number in numbers)
    gained, lost = (
        {commit.number for commit in history.new_in(*pair) if is_repair(commit)}
        for pair in ((newer, older), (older, newer))
    )
    hashes = {hash_of_word(option.replace("-", "_")): option for option in options}
    readers, repairs = Counter[str](), list[tuple[int, Repair]]()
    for path in history.files:
        file = history.file(path)
        for function, settings in file.options.items():
            reached = tuple(sorted(hashes[option] for option in settings & hashes.keys()))
            readers.update(reached)
            for change in file.changes(function) if reached and len(settings) <= PARSER else ():
                if change.commit in gained | lost:
                    commit, name = history.commit_of(change.commit), f"{path}:{function or '<module>'}"
                    repairs.append((len(settings), Repair(commit, name, reached)))
    if not readers:
        notes.append(f"no function is known to read {'an option of the job' if hashes else 'options: no job is named'}")
    repairs.sort(key=lambda pair: pair[0] * min(readers[option] for option in pair[1].options))
    ordered = list(reversed({repair.commit.number: repair for _, repair in reversed(repairs)}.values()))
    sides = [tuple(repair for repair in ordered if repair.commit.number in side) for side in (gained, lost)]
    return RepairsBetween(component, versions, sides[0], sides[1], "; ".join(notes))


def named_in(text: str) -> Iterator[tuple[UpstreamHistory, UpstreamCommit]]:
    """Yield the commits that a text names: by id, or by an issue or pull request of their project, such as X/Y#1."""
    for history in histories():
        owner, name = map(re.escape, history.repository.split("/"))
        commits = [history.commit_of(number) for id in _ID.findall(text) for _, number in history.find(id)]
        for number in re.findall(rf"(?<![\w/-])(?:{owner}/)?{name}#(\d{{1,9}})\b", text):
            commits += history.naming(int(number))
        yield from ((history, commit) for commit in {commit.number: commit for commit in commits}.values())


def original(subject: str) -> str:
    """Return a subject without what a copy in a release's branch adds to it."""
    return _COPIED.sub("", subject).lower()


def in_words(offer: CommitOffer) -> str:
    """Return an offer in one line."""
    return f"{commit_in_words(offer.commit)}: {offer.reason}"


def commit_in_words(commit: UpstreamCommit) -> str:
    """Return a commit in one line: id, date, subject, first release, what reverted it."""
    since = f"first in {commit.releases[0]}" if commit.releases else "in no release"
    picked = f" and {len(commit.releases) - 1} more" if len(commit.releases) > 1 else ""
    reverted = "; reverted later" if commit.reverted_by is not None else ""
    return f'{commit.id} of {commit.date}, {sort_of(commit)}"{commit.subject}", {since}{picked}{reverted}'


def repairs_of(history: UpstreamHistory, number: int) -> tuple[str, list[UpstreamCommit]]:
    """Return the release before another one, by number, and the fixes and reverts that it lacks."""
    predecessor = max(number - 1, 0)
    return history.releases[predecessor], list(filter(is_repair, history.new_in(number, predecessor)))


def is_repair(commit: UpstreamCommit) -> bool:
    """Return whether a subject calls its commit a fix or a revert."""
    return sort_of(commit).startswith(("a fix", "a revert"))


def sort_of(commit: UpstreamCommit) -> str:
    """Return what a subject calls its commit: a revert, a fix or a refactoring; "" for anything else."""
    if re.search(r"(?i)\brevert", commit.subject):
        return "a revert: "
    if re.search(r"(?i)\bfix|\bbug", commit.subject):
        return "a fix: "
    return "a refactoring: " if re.search(r"(?i)refactor|rename|clean", commit.subject) else ""
