"""Bisect the commits of a clone, in either direction of the history, and into merged branches.

`git bisect` probes every ancestor of the bad end that is no ancestor of the good end, including commits on branches
that forked before the good end. Such a commit may match the other end only because it never had the change in
question. This search covers the commits that descend from the old end first. If the result is a merge, and the merged
branch has changed as well, it searches that branch from its fork.

The commits that probably changed the result, by what the failure names, order a search, and decide nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Final

from matrix.ground.catalog.failure import ContractCall, Signature
from matrix.ground.errors import MatrixError
from matrix.prove.bisection.axes import Clone, Commit, Subject, at_commit, commits
from matrix.prove.bisection.noise import CERTAIN, ProbeResult
from matrix.prove.bisection.probe_session import Bisection, BisectionSession, bisect, line_of, wrong_end
from matrix.prove.bisection.search import Plan, ResultKind, WrongEndError
from matrix.read.api import consuming, offering
from matrix.read.api.recording import MCORE

Suspects = Callable[[Sequence[Commit]], set[int]]  # the places of some commits among these

SOURCES: Final = (".py", ".cpp", ".cu", ".cuh", ".h")
_QUOTED: Final = re.compile(r"'([A-Za-z_]\w{2,})'")
# snake_case, or CamelCase
_NAME: Final = re.compile(r"\b(?!__)(?:[A-Za-z]\w{0,99}_\w{1,99}|\w{0,99}[a-z][A-Z]\w{0,99})\b")


def no_suspects(commits: Sequence[Commit]) -> set[int]:
    """Suspect no commit."""
    return set()


def of_call(call: ContractCall, clone: Clone) -> Suspects:
    """Suspect the commits that changed a file in which a failure's callee is named."""
    names = [name.encode() for name in re.findall(r"\w{2,}", call.callee)]
    part = consuming.is_part if clone.package == MCORE else offering.is_part

    def mark(blob: str) -> str:
        content = clone.blob(blob)
        return blob if any(name in content for name in names) else ""

    return lambda commits: changing(commits, clone, part, mark)


def of_signatures(signatures: Iterable[Signature], clone: Clone, command: str = "") -> Suspects:
    """Suspect the commits that changed how often a file has the names in the signatures.

    Without a name, those that added or removed a file which the text of a command names: by its path, or as a module.
    """
    names = [name.encode() for name in names_in(signatures)]

    def mark(blob: str) -> tuple[int, ...]:
        counts = tuple(map(clone.blob(blob).count, names))
        return counts if any(counts) else ()

    @cache
    def named(path: str) -> bool:
        module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        return path in command or re.search(rf"(?<![\w.]){re.escape(module)}(?!\w)", command) is not None

    if not names:
        return (lambda commits: changing(commits, clone, named, bool)) if command else no_suspects
    return lambda commits: changing(commits, clone, lambda path: path.endswith(SOURCES), mark)


def names_in(signatures: Iterable[Signature]) -> list[str]:
    """Return the names in quotes in the messages of the signatures; without one, other names, and the frame's."""
    messages = [f"{signature.message or ''} {signature.log or ''}" for signature in signatures]
    quoted = [name for text in messages for name in _QUOTED.findall(text)]
    frames = [signature.frame.rpartition(":")[2] for signature in signatures if signature.frame]
    unquoted = [name for text in (*messages, *frames) for name in _NAME.findall(text)]
    return list(dict.fromkeys(quoted or unquoted))


def changing(
    commits: Sequence[Commit], clone: Clone, part: Callable[[str], bool], mark: Callable[[str], Hashable]
) -> set[int]:
    """Return the places of the commits with other marks of files than each parent; a false mark is no mark.

    Reads trees and blobs alone, each once.
    """
    once = cache(mark)
    files: dict[str, frozenset[tuple[str, Hashable]]] = {}
    suspected = set()
    for index, commit in enumerate(commits):
        marks = {path: once(blob) for path, blob in clone.files(commit.id, part).items()}
        files[commit.id] = frozenset((path, file_mark) for path, file_mark in marks.items() if file_mark)
        parent_marks = [files[parent] for parent in commit.parents if parent in files]
        if parent_marks and files[commit.id] not in parent_marks:
            suspected.add(index)
    return suspected


@dataclass(frozen=True)
class Searcher:
    """Searches the commits of one clone: every search shares the subject, the plan and the session."""

    subject: Subject
    axis: str
    clone: Clone
    plan: Plan
    session: BisectionSession
    suspects: Suspects = no_suspects
    probed: list[str] = field(default_factory=list)  # commits probed outside a search

    def between(self, good: Commit, bad: Commit) -> Bisection:
        """Return where the result changes between two commits; either may be the older one. Raises MatrixError."""
        bisection = self._between(good, bad)
        if not self.probed or self.plan.noise == CERTAIN:
            return bisection
        spared = bisection.result.confidence - (1 - self.plan.confidence) / 2
        return replace(bisection, result=replace(bisection.result, confidence=spared))

    def _between(self, good: Commit, bad: Commit) -> Bisection:
        fork = self.clone.fork(good.id, bad.id)
        if not fork:
            raise MatrixError("the two ends have no history in common", where=self.clone.path, got=f"{good}; {bad}")
        if fork == good.id:
            return self.search_path(good, bad, ProbeResult.GOOD)
        if fork == bad.id:
            return self.search_path(bad, good, ProbeResult.BAD)
        base = self.clone.commit(fork)
        result = self.probe(base)
        if result is ProbeResult.SKIP:
            raise MatrixError(
                "neither end descends from the other, and their merge base is inconclusive",
                got=str(base),
                fix="name an end that the other one descends from",
            )
        unchanged, changed = (good, bad) if result is ProbeResult.GOOD else (bad, good)
        self.expect(unchanged, result)
        bisection = self.search_path(base, changed, result)
        likeness = f"their merge base {base} is {result.value}, like {unchanged.id[:10]}"
        return replace(bisection, notes=(f"neither end descends from the other; {likeness}", *bisection.notes))

    def search_path(self, old: Commit, new: Commit, expected: ProbeResult, depth: int = 0) -> Bisection:
        """Return where the result stops being `expected` between `old` and its descendant `new`.

        The searches get half of the allowed error, each nested branch half of the rest; the commits that are probed
        between them get the other half.
        """
        axis = commits(self.subject, self.axis, self.clone, old, new)
        plan = replace(self.plan, confidence=1 - (1 - self.plan.confidence) / 4 / 2**depth)
        bisection = bisect(self.subject, axis, expected, plan, self.session, suspects=self.suspects(axis.commits))
        if bisection.result.kind is ResultKind.AMBIGUOUS:
            return bisection
        merge = axis.commits[bisection.result.candidates[0]]
        inside = {point.id for point in axis.points}
        for parent in (self.clone.commit(id) for id in merge.parents if id not in inside):
            result = self.probe(parent)
            if result is ProbeResult.SKIP:
                note = f"{merge.id[:10]} merges {parent}, which is inconclusive: the change may come from that branch"
                ambiguous = replace(bisection.result, kind=ResultKind.AMBIGUOUS)
                return replace(bisection, result=ambiguous, notes=(*bisection.notes, note))
            if result is expected:
                continue
            fork = self.clone.commit(self.clone.fork(old.id, parent.id))
            if self.probe(fork) is not expected:
                note = f"it merges a branch that was never {expected.value}: its fork {fork} is {result.value}"
                return replace(bisection, notes=(*bisection.notes, note))
            deeper = self.search_path(fork, parent, expected, depth + 1)
            confidence = bisection.result.confidence + deeper.result.confidence - 1
            note = f"{merge} merges the branch of this commit, which forked at {fork}"
            return replace(deeper, result=replace(deeper.result, confidence=confidence), notes=(*deeper.notes, note))
        return bisection

    def probe(self, commit: Commit) -> ProbeResult:
        """Probe one commit outside a search, as often as its noise requires."""
        planned = at_commit(self.subject, self.axis, self.clone, commit.id)
        self.probed.append(commit.id)
        error = (1 - self.plan.confidence) / 2 / (len(self.probed) * (len(self.probed) + 1))
        return self.session.settled([planned], [str(commit)], self.plan.noise, error)[0]

    def expect(self, commit: Commit, expected: ProbeResult) -> None:
        """Raise MatrixError unless the result of a commit is `expected`."""
        result = self.probe(commit)
        if result is not expected:
            axis = commits(self.subject, self.axis, self.clone, commit, commit)
            planned = axis.case_at(0)
            record = self.session.records[planned.key][-1]
            raise wrong_end(axis, WrongEndError(0, result, expected, 1), record, line_of(self.subject, planned))
