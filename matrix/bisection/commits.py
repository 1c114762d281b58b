"""Bisect the commits of a clone, in either direction of the history, and into merged branches.

`git bisect` probes every ancestor of the bad end that is no ancestor of the good end, including commits on branches
that forked before the good end. Such a commit may match the other end only because it never had the change in
question. This search covers the commits that descend from the old end first. If the result is a merge, and the merged
branch has changed as well, it searches that branch from its fork.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from matrix.bisection.axes import AxisName, Subject, at_commit, commits
from matrix.bisection.clone import Clone, Commit
from matrix.bisection.noise import CERTAIN, ProbeResult
from matrix.bisection.probing import line_of
from matrix.bisection.search import Plan, ResultKind, WrongEndError
from matrix.bisection.session import Bisection, BisectionSession, bisect, wrong_end
from matrix.bisection.suspects import Suspects, none
from matrix.errors import MatrixError


@dataclass(frozen=True)
class Searcher:
    """Searches the commits of one clone: every search shares the subject, the plan and the session."""

    subject: Subject
    axis: AxisName
    clone: Clone
    plan: Plan
    session: BisectionSession
    suspects: Suspects = none
    probed: list[str] = field(default_factory=list)  # commits probed outside a search

    def between(self, good: Commit, bad: Commit) -> Bisection:
        """Return where the result changes between two commits; either may be the older one. Raises MatrixError."""
        found = self._between(good, bad)
        if self.probed and self.plan.noise != CERTAIN:
            spared = found.found.confidence - (1 - self.plan.confidence) / 2
            found = replace(found, found=replace(found.found, confidence=spared))
        return replace(found, ran=self.session.ran, seconds=self.session.seconds)

    def _between(self, good: Commit, bad: Commit) -> Bisection:
        fork = self.clone.fork(good.id, bad.id)
        if not fork:
            raise MatrixError("the two ends have no history in common", where=self.clone.path, got=f"{good}; {bad}")
        if fork == good.id:
            return self.along(good, bad, ProbeResult.GOOD)
        if fork == bad.id:
            return self.along(bad, good, ProbeResult.BAD)
        start = self.clone.commit(fork)
        seen = self.probe(start)
        if seen is ProbeResult.SKIP:
            raise MatrixError(
                "neither end descends from the other, and their merge base is inconclusive", got=str(start),
                fix="name an end that the other one descends from",
            )  # fmt: skip
        left, right = (good, bad) if seen is ProbeResult.GOOD else (bad, good)
        self.expect(left, seen)
        found = self.along(start, right, seen)
        note = f"neither end descends from the other; their merge base {start} is {seen.value}, like {left.id[:10]}"
        return replace(found, notes=(note, *found.notes))

    def along(self, old: Commit, new: Commit, seen: ProbeResult, depth: int = 0) -> Bisection:
        """Return where the result stops being `seen` between `old` and its descendant `new`.

        The searches get half of the allowed error, each nested branch half of the rest; the commits that are probed
        between them get the other half.
        """
        axis = commits(self.subject, self.axis, self.clone, old, new)
        plan = replace(self.plan, confidence=1 - (1 - self.plan.confidence) / 4 / 2**depth)
        found = bisect(self.subject, axis, seen, plan, self.session, suspects=self.suspects(axis.commits))
        if found.found.kind is ResultKind.AMBIGUOUS:
            return found
        merge = axis.commits[found.found.candidates[0]]
        inside = {point.id for point in axis.points}
        for parent in (self.clone.commit(one) for one in merge.parents if one not in inside):
            result = self.probe(parent)
            if result is ProbeResult.SKIP:
                note = f"{merge.id[:10]} merges {parent}, which is inconclusive: the change may come from that branch"
                return replace(found, found=replace(found.found, kind=ResultKind.AMBIGUOUS), notes=(*found.notes, note))
            if result is seen:
                continue
            left = self.clone.commit(self.clone.fork(old.id, parent.id))
            if self.probe(left) is not seen:
                note = f"it merges a branch that was never {seen.value}: its fork {left} is {result.value}"
                return replace(found, notes=(*found.notes, note))
            deeper = self.along(left, parent, seen, depth + 1)
            note = f"{merge} merges the branch of this commit, which forked at {left}"
            return replace(
                deeper,
                found=replace(deeper.found, confidence=found.found.confidence + deeper.found.confidence - 1),
                notes=(*deeper.notes, note),
            )
        return found

    def probe(self, commit: Commit) -> ProbeResult:
        """Probe one commit outside a search, as often as its noise requires."""
        planned = at_commit(self.subject, self.axis, self.clone, commit.id)
        self.probed.append(commit.id)
        error = (1 - self.plan.confidence) / 2 / (len(self.probed) * (len(self.probed) + 1))
        return self.session.settled([planned], [str(commit)], self.plan.noise, error)[0]

    def expect(self, commit: Commit, seen: ProbeResult) -> None:
        """Raise MatrixError unless the result of a commit is `seen`."""
        result = self.probe(commit)
        if result is not seen:
            axis = commits(self.subject, self.axis, self.clone, commit, commit)
            planned = axis.case_at(0)
            record = self.session.records[planned.key][-1]
            raise wrong_end(axis, WrongEndError(0, result, seen, 1), record, line_of(self.subject.failure, planned))
