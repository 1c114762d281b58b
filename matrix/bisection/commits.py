"""Bisecting the commits of a clone: which way the history runs, and into the branches that merges brought.

`git bisect` asks any commit behind the bad end that is not behind the good one, also on branches that left the history
before the good end. Such a commit may answer like the other end only because it never had what is looked for. So here
the commits that descend from the old end are searched first; when the answer is a merge, and the branch that it merged
answers the same way, that branch is searched from the commit where it left.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from matrix.bisection.axes import AxisName, Subject, at_commit, commits
from matrix.bisection.clone import Clone, Commit
from matrix.bisection.noise import CERTAIN, Seen
from matrix.bisection.probing import line_of
from matrix.bisection.search import Plan, ResultKind, WrongEndError
from matrix.bisection.session import Bisection, BisectionSession, bisect, wrong_end
from matrix.errors import MatrixError


def nobody(commits: Sequence[Commit]) -> Collection[int]:
    """Suspect no commit."""
    return ()


@dataclass(frozen=True)
class Searcher:
    """What all searches of one question share."""

    subject: Subject
    axis: AxisName
    clone: Clone
    plan: Plan
    inquiry: BisectionSession
    suspects: Callable[[Sequence[Commit]], Collection[int]] = nobody
    asked: list[str] = field(default_factory=list)  # commits asked outside a search

    def between(self, good: Commit, bad: Commit) -> Bisection:
        """Return where the answer changes between two commits, whichever is the older one. Raises MatrixError."""
        found = self._between(good, bad)
        if self.asked and self.plan.noise != CERTAIN:
            spared = found.found.confidence - (1 - self.plan.confidence) / 2
            found = replace(found, found=replace(found.found, confidence=spared))
        return replace(found, ran=self.inquiry.ran, seconds=self.inquiry.seconds)

    def _between(self, good: Commit, bad: Commit) -> Bisection:
        fork = self.clone.fork(good.id, bad.id)
        if not fork:
            raise MatrixError("the two ends have no history in common", where=self.clone.path, got=f"{good}; {bad}")
        if fork == good.id:
            return self.along(good, bad, Seen.GOOD)
        if fork == bad.id:
            return self.along(bad, good, Seen.BAD)
        start = self.clone.commit(fork)
        seen = self.ask(start)
        if seen is Seen.SKIP:
            raise MatrixError(
                "neither end descends from the other, and the commit where they part says nothing", got=str(start),
                fix="name an end that the other one descends from",
            )  # fmt: skip
        left, right = (good, bad) if seen is Seen.GOOD else (bad, good)
        self.expect(left, seen)
        found = self.along(start, right, seen)
        said = f"neither end descends from the other; they part at {start}, which is {seen.value} as {left.id[:10]} is"
        return replace(found, notes=(said, *found.notes))

    def along(self, old: Commit, new: Commit, seen: Seen, depth: int = 0) -> Bisection:
        """Return where the answer stops being `seen` between `old` and its descendant `new`.

        Half of the error that may be made is for the searches, each branch within a branch with half of what is left;
        the other half is for the commits that are asked between them.
        """
        axis = commits(self.subject, self.axis, self.clone, old, new)
        plan = replace(self.plan, confidence=1 - (1 - self.plan.confidence) / 4 / 2**depth)
        found = bisect(self.subject, axis, seen, plan, self.inquiry, suspects=self.suspects(axis.commits))
        if found.found.kind is ResultKind.AMBIGUOUS:
            return found
        merge = self.clone.commit(axis.points[found.found.candidates[0]].id)
        inside = {point.id for point in axis.points}
        for parent in (self.clone.commit(one) for one in merge.parents if one not in inside):
            answer = self.ask(parent)
            if answer is Seen.SKIP:
                said = f"{merge.id[:10]} merges {parent}, which can't be asked: it may have come from there"
                return replace(found, found=replace(found.found, kind=ResultKind.AMBIGUOUS), notes=(*found.notes, said))
            if answer is seen:
                continue
            left = self.clone.commit(self.clone.fork(old.id, parent.id))
            if self.ask(left) is not seen:
                said = f"it merges a branch that left at {left}, which is {answer.value} too: it never was {seen.value}"
                return replace(found, notes=(*found.notes, said))
            deeper = self.along(left, parent, seen, depth + 1)
            said = f"{merge} merges the branch of it, which left at {left}"
            return replace(
                deeper,
                found=replace(deeper.found, confidence=found.found.confidence + deeper.found.confidence - 1),
                notes=(*deeper.notes, said),
            )
        return found

    def ask(self, commit: Commit) -> Seen:
        """Ask one commit outside a search, until its noise is settled."""
        planned = at_commit(self.subject, self.axis, self.clone, commit.id)
        self.asked.append(commit.id)
        error = (1 - self.plan.confidence) / 2 / (len(self.asked) * (len(self.asked) + 1))
        return self.inquiry.settled([planned], [str(commit)], self.plan.noise, error)[0]

    def expect(self, commit: Commit, seen: Seen) -> None:
        """Raise MatrixError when a commit does not answer as it was said to."""
        answer = self.ask(commit)
        if answer is not seen:
            axis = commits(self.subject, self.axis, self.clone, commit, commit)
            planned = axis.case_at(0)
            record = self.inquiry.records[planned.key][-1]
            raise wrong_end(axis, WrongEndError(0, answer, seen, 1), record, line_of(self.subject.failure, planned))
