"""The question of a bisection: what every point shares, the two ends, and the search between them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from matrix.ground.catalog.failure import Level, Signature
from matrix.ground.catalog.kinds import kind_table
from matrix.ground.catalog.model import Catalog, Container
from matrix.ground.catalog.stack import ABSENT, BASE, DRIVER, MCORE, TE, TORCH, WRITER_MCORE
from matrix.ground.catalog.versions import is_version
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.kind_match import KindIndex
from matrix.ground.verdicts.outcome import Raised
from matrix.prove.bisection import axes
from matrix.prove.bisection.axes import WORDS, BisectionAxis, Clone, Subject, axis_named, axis_word, read_package
from matrix.prove.bisection.commits import Searcher, Suspects, no_suspects
from matrix.prove.bisection.joint import BisectionAnswer, Contents, StackPair, bisect_stacks, read_pair
from matrix.prove.bisection.noise import ProbeResult
from matrix.prove.bisection.probe_session import BisectionSession, End, bisect
from matrix.prove.bisection.probing import reads_only
from matrix.prove.bisection.search import Plan
from matrix.read.api.provider import PROVIDERS
from matrix.read.api.recording import releases_with

_ESCAPED = re.compile(r"\\(\W)")


@dataclass(frozen=True)
class SearchRange:
    """The points of a bisection: what they share, the good and the bad end, and the search between them."""

    subject: Subject
    ends: tuple[End, End]
    search: Callable[[Plan, BisectionSession], BisectionAnswer]


@dataclass(frozen=True)
class BisectionQuestion:
    """The options of `megatrix bisect` that select its points; "" is an option that is not given.

    With `own`, the words of a command, a point needs no package.
    """

    failure: str
    axis: str
    good: str
    bad: str
    repo: str
    case: str
    level: str
    base: str
    torch: str
    mcore: str
    te: str
    writer: str
    driver: str
    compile: bool
    own: Sequence[str]
    pin: Sequence[str] = ()

    def subject(self, known: Catalog) -> Subject:
        """Return what the options hold fixed. Raises MatrixError where they conflict or a version is missing."""
        failure = known.failure(self.failure)
        case, level = axes.choose_case(failure, Level(self.level) if self.level else None, self.case)
        subject = Subject(known, failure, case, level, compiled=bool(self.compile))
        for component, text in ((MCORE, self.mcore), (TE, self.te), (WRITER_MCORE, self.writer)):
            subject = subject.with_(component, *read_package(text, axes.PACKAGES[component]))
        for text in self.pin:
            subject = subject.with_(*_pinned(text))
        subject = subject.with_(DRIVER, ABSENT if self.driver in ("", str(ABSENT)) else self.driver)
        axis = axis_named(self.axis) if self.axis else ""
        if self.compile and not (TE in subject.sources or (self.repo and axis == TE)):
            raise MatrixError(
                "--compile builds a Transformer Engine from its source",
                got="none",
                expected="--axis te --repo CLONE, or --te PATH@REV",
            )
        if not axis:
            self._check_stacks()
            return subject.with_(BASE, known.readers[0].id) if level is Level.CONTRACT else subject
        self._check_axis(axis)
        if not case.write and (axis == WRITER_MCORE or self.writer):
            raise MatrixError("this failure reads no checkpoint of another release", got=failure.id)
        for name in self._missing(subject):
            if name != axis:
                raise MatrixError(
                    f"--{axis_word(name)} is required: it is the same at every point", got="none", expected=axes.SIDE
                )
        base = axes.base_for(subject, self.base, self.torch, axis)
        return subject.with_(BASE, base) if base else subject

    def _missing(self, subject: Subject) -> list[str]:
        """Return the components that the subject's points need and its stack lacks."""
        reads = reads_only(subject.failure, subject.level)
        needs = {MCORE: not self.own, TE: reads, WRITER_MCORE: bool(subject.case.write)}
        return [name for name, is_needed in needs.items() if is_needed and subject.stack[name] is ABSENT]

    def _check_stacks(self) -> None:
        """Raise MatrixError for options that do not compare two stacks."""
        if not (self.good and self.bad) or self.repo or self.base or self.torch:
            raise MatrixError(
                "neither an axis nor two stacks",
                expected=f"--axis {'|'.join(WORDS)}|PACKAGE, or two stacks",
                fix="--good STACK --bad STACK finds the package; a STACK is BASE or BASE/mcore-V/te-V/driver-V",
            )

    def _check_axis(self, axis: str) -> None:
        """Raise MatrixError for options that do not fit the axis."""
        base = self.torch or self.base
        fixed = {TORCH: base, BASE: base, MCORE: self.mcore, TE: self.te, WRITER_MCORE: self.writer}
        if value := fixed.get(axis):
            raise MatrixError(
                f"the axis {axis_word(axis)} can't be fixed",
                got=f"{value} held fixed",
                fix="give its ends with --good and --bad",
            )
        if self.repo and axis not in axes.PACKAGES:
            raise MatrixError("--repo requires axis mcore, te or writer", got=f"--axis {axis_word(axis)} --repo")
        if self.repo and not (self.good and self.bad):
            raise MatrixError(
                "--repo requires both ends",
                expected="--good REV --bad REV",
                fix="give both; either may be the older commit",
            )

    def points(
        self,
        subject: Subject,
        lacks: Callable[[str], str],
        clone: Clone | None = None,
        suspects: Suspects = no_suspects,
        contents: Contents | None = None,
    ) -> SearchRange:
        """Return the points between the ends, commits of `clone` if there is one. Raises MatrixError.

        `lacks` returns the reason why an image can't run on this machine, `contents` what a base contains; `suspects`
        orders commits.
        """
        differ(self.good, self.bad)
        if not self.axis:
            return self._stacks(read_pair(subject, self.good, self.bad, lacks, contents))
        axis = axis_named(self.axis)
        if clone:
            good, bad = clone.commit(self.good), clone.commit(self.bad)
            differ(good.id, bad.id)
            ends = (
                End(axes.at_commit(subject, axis, clone, good.id), str(good)),
                End(axes.at_commit(subject, axis, clone, bad.id), str(bad)),
            )

            def between(plan: Plan, session: BisectionSession) -> BisectionAnswer:
                searcher = Searcher(subject, axis, clone, plan, session, suspects)
                return BisectionAnswer(subject, {axis: searcher.between(good, bad)})

            return SearchRange(subject, ends, between)
        stretch, swapped = axes.releases(subject, axis, self.good, self.bad, partial(run_by, subject, lacks))
        points = stretch.points
        if len(points) < 2:
            got = ", ".join(point.label for point in points) or "none"
            raise MatrixError(
                "the axis has too few points", got=got, expected="at least two", fix="; ".join(stretch.notes) or None
            )
        oldest, newest = (End(stretch.case_at(index), points[index].label) for index in (0, len(points) - 1))
        old = (ProbeResult.BAD if swapped else ProbeResult.GOOD) if self.good and self.bad else None
        return SearchRange(
            subject, (newest, oldest) if swapped else (oldest, newest), partial(search_releases, subject, stretch, old)
        )

    def _stacks(self, stacks: StackPair) -> SearchRange:
        if not stacks.components:
            differ(self.bad, self.bad)
        for text, on_stack in ((self.good, stacks.good), (self.bad, stacks.bad)):
            for name in map(axis_word, self._missing(on_stack)):
                raise MatrixError(
                    f"the stack has no {name}", got=text, fix=f"--{name} V, or {text}/mcore-V/te-V/driver-none"
                )
        unmixed = (frozenset[str](), frozenset(stacks.components))
        good_end, bad_end = (
            End(side.planned(), stacks.label(mixture)) for mixture in unmixed if (side := stacks.mixture(mixture))
        )
        return SearchRange(stacks.good, (good_end, bad_end), partial(bisect_stacks, stacks))


def _pinned(text: str) -> tuple[str, str]:
    """Return the package and the version of "NAME==VERSION". Raises MatrixError."""
    name, _, version = text.partition("==")
    component = axis_named(name)
    if component in WORDS.values() or not is_version(version):
        raise MatrixError(
            "not a pin of a package",
            got=text,
            expected="NAME==VERSION, such as numpy==2.3.4",
            fix="--torch, --base, --mcore, --te and --driver fix the others",
        )
    return component, version


def search_releases(
    subject: Subject, axis: BisectionAxis, old: ProbeResult | None, plan: Plan, session: BisectionSession
) -> BisectionAnswer:
    """Bisect released versions; with `old` None the oldest is probed first, and the newest must then differ."""
    if old is None:
        (result,) = session.settled([axis.case_at(0)], [axis.points[0].label], plan.noise, 1 - plan.confidence)
        old = result if result is not ProbeResult.SKIP else ProbeResult.GOOD
    suspects = suspected_releases(subject.failure.signature, axis.component, [point.id for point in axis.points])
    bisection = bisect(subject, axis, old, plan, session, cheap=session.is_cheap, suspects=suspects)
    return BisectionAnswer(subject, {axis.component: bisection})


def run_by(subject: Subject, lacks: Callable[[str], str], image: str) -> str:
    """Return the base that runs an image: itself, or its twin where it can't run on this machine."""
    base = subject.catalog.base(image)
    if not isinstance(base, Container) or subject.level is Level.GPU or not lacks(image):
        return image
    twin = subject.catalog.twin(base)
    return twin.id if twin else image


def differ(good: str, bad: str) -> None:
    """Raise MatrixError when both ends are the same point."""
    if good and good == bad:
        raise MatrixError("good and bad are the same point", got=good, expected="two points that behave differently")


def suspected_releases(signatures: Iterable[Signature], package: str, versions: Sequence[str]) -> set[int]:
    """Return the places of the releases, oldest first, that first have what a signature names, or first lack it.

    They order a search, and decide nothing: a run confirms both sides.
    """
    provider = PROVIDERS.get(package)
    if provider is None:
        return set()
    kinds, suspects = KindIndex(kind_table()), set[int]()
    for signature in signatures:
        message = _ESCAPED.sub(r"\1", signature.message or "")
        if sighting := kinds.shown_by(Raised(signature.exception or "", message)):
            states = map(dict(releases_with(provider, sighting.groups)).get, versions)
            pairs = enumerate(pairwise(states), start=1)
            suspects |= {index for index, (older, newer) in pairs if None not in (older, newer) and older != newer}
    return suspects
