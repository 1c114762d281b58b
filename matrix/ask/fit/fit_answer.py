"""The answer of `megatrix fit`: the best set, its evidence, what is a wheel, the nearest image; or what conflicts.

The search backtracks, and jumps back to an axis of the conflict. It finds the first set in lexicographic order: the
axis that matters most first, on each axis the best candidate first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import combinations
from typing import Final

from matrix.ask.check.answer import CheckResult
from matrix.ask.check.calls import calls_of
from matrix.ask.check.checking import Question, check
from matrix.ask.check.user_stack import COMMAND_LINE, UserStack
from matrix.ask.fit.candidates import INDEX, Candidate, Recorded, axes, cuda_package, library_package
from matrix.ask.fit.rules import FRAMEWORK, RUN, Chosen, Rejection, Rules, stack_of
from matrix.ask.fit.wishes import Wishes
from matrix.ground.cases.machine_requirements import Fit, fitting, minimum_driver, wheels_fitting
from matrix.ground.catalog.failure import Expectation
from matrix.ground.catalog.model import Container
from matrix.ground.catalog.stack import (
    CALL_PAIRS,
    CUDA,
    DRIVER,
    MCORE,
    PYTHON,
    TE,
    TORCH,
    Stack,
    component_named,
    component_title,
    in_order,
)
from matrix.ground.catalog.versions import minor, parse
from matrix.ground.errors import ExitStatus

# Whether the candidate on an axis goes with those chosen before it: a rejection, or None.
Reject = Callable[[Mapping[str, Candidate], str], "Rejection | None"]


@dataclass
class ReleaseSearch:
    """One search. `rejections` are those met, by text, in order; `tried` counts the candidates."""

    axes: Mapping[str, Sequence[Candidate]]
    reject: Reject
    rejections: dict[str, Rejection] = field(default_factory=dict)
    tried: int = 0

    def best(self) -> dict[str, Candidate] | None:
        """Return the first set in order that nothing rejects, None where there is none."""
        found, _ = self._extend({}, list(self.axes))
        return found

    def _extend(
        self, chosen: dict[str, Candidate], open_axes: Sequence[str]
    ) -> tuple[dict[str, Candidate] | None, frozenset[str]]:
        """Return the first set that extends the chosen ones; without one, the axes that are to blame."""
        if not open_axes:
            return chosen, frozenset()
        axis, blamed = open_axes[0], frozenset[str]()
        for candidate in self.axes[axis]:
            self.tried += 1
            extended = {**chosen, axis: candidate}
            if rejection := self.reject(extended, axis):
                self.rejections.setdefault(rejection.text, rejection)
                blamed |= rejection.axes - {axis}
                continue
            result, inner = self._extend(extended, open_axes[1:])
            if result is not None:
                return result, frozenset()
            if axis not in inner:
                return None, inner
            blamed |= inner - {axis}
        return None, blamed


COMPARED: Final = (TORCH, TE, MCORE, CUDA, "flash-attn", PYTHON)  # with the contents of an image
MOST_ANSWERS: Final = 6  # where wishes conflict
EXTENSION: Final = f"{TE}-torch"
UNRESOLVED: Final = Rejection("the index does not resolve a set with it", frozenset(), "declared")
UPGRADE: Final = "upgrade"  # an Installed.way


class FitVerdict(str, Enum):
    """What `megatrix fit` answers."""

    FITS = "fits"
    UNKNOWN = "fits as far as is known"
    CONFLICT = "the wishes exclude each other"

    @property
    def status(self) -> ExitStatus:
        """Return the exit status."""
        return {"FITS": ExitStatus.GOOD, "UNKNOWN": ExitStatus.NOTHING, "CONFLICT": ExitStatus.BAD}[self.name]


@dataclass(frozen=True)
class FitEvidence:
    """How it is known that a release goes with the others: "run", "read", "declared" or "unknown"."""

    kind: str
    text: str


@dataclass(frozen=True)
class Installed:
    """How one distribution is installed.

    `way`: "wheel", "attached wheel" (of its tag), "build" or "clone", with what it needs and how long that takes; or
    "upgrade" of a library that torch's wheel brings, with the failure that it lifts as what it needs.
    `backend` is that of torch, or the repository of a clone.
    """

    package: str
    version: str
    way: str = "wheel"
    needs: str = ""
    backend: str = INDEX
    minutes: str = ""


@dataclass(frozen=True)
class NearImage:
    """The image nearest to a set: what it has alike and what it has otherwise, both by component; how it runs."""

    id: str
    alike: Mapping[str, str]
    otherwise: Mapping[str, str]
    driver: str = ""

    @property
    def has_all(self) -> bool:
        """Return whether every component that is compared is alike."""
        return not self.otherwise


@dataclass(frozen=True)
class FittingSet:
    """A set of releases that fit, with what `check` says of it.

    `beside` are requirements on packages that are not chosen, which the catalog's exclusions state ("numpy<2").
    `caveats` are the failures of the set that an option decides, and without which no set fits.
    """

    chosen: Chosen
    result: CheckResult
    evidence: Mapping[str, tuple[FitEvidence, ...]] = field(default_factory=dict)
    installed: tuple[Installed, ...] = ()
    image: NearImage | None = None
    beside: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()

    @property
    def versions(self) -> dict[str, str]:
        """Return the versions of everything that the set fixes, in the components' order."""
        fixed = {name: version for one in self.chosen.values() for name, version in one.fixes.items() if version}
        return {name: fixed[name] for name in in_order(fixed)}

    @property
    def pins(self) -> list[str]:
        """Return the exact requirements of what is installed, as lines of a constraints file."""
        return [f"{each.package}=={each.version}" for each in self.installed if each.way not in ("clone", UPGRADE)]


@dataclass(frozen=True)
class Concession:
    """What the set is without some wishes, as their texts; `costs` are what they exclude, such as a newer release."""

    dropped: tuple[str, ...]
    fitting: FittingSet
    remark: str = ""


@dataclass(frozen=True)
class HeldBack:
    """Newer releases of an axis than the one that is chosen, newest first, which one reason excludes from the set."""

    axis: str
    chosen: str
    newer: tuple[str, ...]
    reason: Rejection


@dataclass(frozen=True)
class FitAnswer:
    """The whole answer; `reasons` are why the wishes exclude each other, `alternatives` the sets without some.

    `held_back` are the releases newer than those of `best`.
    """

    wishes: Wishes
    verdict: FitVerdict
    best: FittingSet | None = None
    alternatives: tuple[Concession, ...] = ()
    reasons: tuple[Rejection, ...] = ()
    unknown: tuple[str, ...] = ()
    tried: int = 0
    held_back: tuple[HeldBack, ...] = ()


# Whether the index resolves a set with all that it requires: "" or the reason why it does not.
Resolve = Callable[[FittingSet], str]


def fit(recorded: Recorded, wishes: Wishes, resolves: Resolve = lambda _: "", attempts: int = 3) -> FitAnswer:
    """Return the best set; a set that `resolves` refuses is out, `attempts` of them."""
    refused: list[tuple[Chosen, str]] = []
    while True:
        search, best = _searched(recorded, wishes, refused=refused)
        if best is None:
            break
        fitting = fitting_set(recorded, wishes, best)
        problem = resolves(fitting)
        if not problem or len(refused) == attempts:
            unknown = tuple(item.text for item in fitting.result.unknown)
            unknown += (f"the index does not resolve the set: {problem}",) if problem else ()
            verdict = FitVerdict.UNKNOWN if unknown else FitVerdict.FITS
            held_back = tuple(_held_back(recorded, wishes, best))
            return FitAnswer(wishes, verdict, fitting, (), (), unknown, search.tried, held_back)
        refused.append((best, problem))
    alternatives = tuple(_alternatives(recorded, wishes))
    return FitAnswer(wishes, FitVerdict.CONFLICT, None, alternatives, _reasons(search, wishes), (), search.tried)


def _held_back(recorded: Recorded, wishes: Wishes, chosen: Chosen) -> Iterator[HeldBack]:
    """Yield why newer releases inside the wishes are not chosen; a reason that only wishes decide comes first."""
    rules, wished = Rules(recorded, wishes), {*wishes.by_component, *wishes.given, FRAMEWORK}
    for axis, candidates in axes(recorded, wishes).items():
        newer = [candidate for candidate in candidates if parse(candidate.version) > parse(chosen[axis].version)]
        groups: dict[str, list[tuple[str, Rejection]]] = {}
        for candidate in newer if candidates[:1] == newer[:1] else ():  # else the oldest is wished
            reasons = list(rules.rejections({**chosen, axis: candidate}, axis)) or [UNRESOLVED]
            reason = min(reasons, key=lambda reason: (not reason.certain, len(reason.axes - wished - {axis})))
            alike = reason.text if reason.failure else reason.text.replace(candidate.version, "")
            groups.setdefault(alike, []).append((str(candidate), reason))
        for group in groups.values():
            yield HeldBack(axis, str(chosen[axis]), tuple(name for name, _ in group), group[0][1])


# Orders the candidates of an axis.
Reorder = Callable[[str, Sequence[Candidate]], Sequence[Candidate]]


def _searched(
    recorded: Recorded,
    wishes: Wishes,
    reorder: Reorder = lambda axis, candidates: candidates,
    refused: Sequence[tuple[Chosen, str]] = (),
) -> tuple[ReleaseSearch, dict[str, Candidate] | None]:
    """Return the search and its set: as torch brings its libraries, else with a newer one, else with caveats."""
    rules = Rules(recorded, wishes)
    for upgrades, certain in ((False, False), (True, False), (True, True)):

        def reject(chosen: Mapping[str, Candidate], axis: str, certain: bool = certain) -> Rejection | None:
            for unresolved, problem in refused:
                if all(chosen.get(name) == candidate for name, candidate in unresolved.items()):
                    return Rejection(f"the index does not resolve it: {problem}", frozenset(unresolved), "declared")
            return rules.rejection(chosen, axis, certain=certain)

        ordered = {
            axis: reorder(axis, candidates) for axis, candidates in axes(recorded, wishes, upgrades=upgrades).items()
        }
        search = ReleaseSearch(ordered, reject)
        best = search.best()
        if best or (upgrades and all(rejection.certain for rejection in search.rejections.values())):
            break
    return search, best


def _reasons(search: ReleaseSearch, wishes: Wishes) -> tuple[Rejection, ...]:
    """Return the reasons that a search met: all between wishes, else one for each pair of axes, the first first."""
    wished = {*wishes.by_component, *wishes.given}
    reasons: dict[object, Rejection] = {}
    for rejection in search.rejections.values():
        reasons.setdefault(rejection.axes if rejection.axes - wished else rejection.text, rejection)
    empty = [axis for axis, candidates in search.axes.items() if not candidates]
    nothing = [
        Rejection(f"no release of {component_title(axis)} has what is wished", frozenset({axis})) for axis in empty
    ]
    return (*nothing, *reasons.values())


def _alternatives(recorded: Recorded, wishes: Wishes) -> Iterator[Concession]:
    """Yield the sets without one of the wishes, of two where no single one suffices; the nearest release first."""
    limiting = [name for name, wish in wishes.by_component.items() if str(wish.limits) or wish.absent]
    names = [*limiting, *wishes.given, *([FRAMEWORK] if wishes.framework else [])]
    for count in (1, 2):
        answers = 0
        for dropped in combinations(names, count):
            fewer = wishes.without(dropped)
            if best := _nearest(recorded, wishes, fewer, dropped):
                answers += 1
                alternative = fitting_set(recorded, fewer, best)
                yield Concession(tuple(map(wishes.text, dropped)), alternative, _remark(recorded, alternative, dropped))
            if answers == MOST_ANSWERS:
                return
        if answers:
            return


def _nearest(recorded: Recorded, wishes: Wishes, fewer: Wishes, dropped: Sequence[str]) -> dict[str, Candidate] | None:
    """Return the best set without some wishes, whose releases are as near as possible to those wished."""

    def reorder(axis: str, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        wish = wishes.by_component.get(axis)
        inside = [index for index, one in enumerate(candidates) if wish and wish.allows(one.version)]
        if axis in dropped and wish and not wish.absent and inside:
            return sorted(candidates, key=lambda one: abs(candidates.index(one) - inside[0]))
        return candidates

    return _searched(recorded, fewer, reorder)[1]


def _remark(recorded: Recorded, made: FittingSet, dropped: Sequence[str]) -> str:
    """Return what takes the place of a dropped driver."""
    cuda = made.versions.get(CUDA)
    would = minimum_driver(recorded.catalog, cuda) if DRIVER in dropped and cuda else ""
    return f"driver {would} or later runs CUDA {cuda}" if would else ""


def fitting_set(recorded: Recorded, wishes: Wishes, chosen: Chosen) -> FittingSet:
    """Return a set with everything that is known of it."""
    stack = stack_of(wishes, chosen)
    user = UserStack(stack, dict.fromkeys(stack, COMMAND_LINE))
    fitting = FittingSet(chosen, check(recorded.catalog, user, Question(), {}))
    return replace(
        fitting,
        evidence={axis: tuple(_evidence(recorded, wishes, chosen, axis)) for axis in chosen},
        installed=tuple(_installed(recorded, wishes, chosen)),
        image=near_image(recorded, wishes, fitting),
        beside=tuple(_beside(recorded, stack)),
        caveats=_against(recorded, wishes, chosen),
    )


def _against(recorded: Recorded, wishes: Wishes, chosen: Chosen) -> tuple[str, ...]:
    """Return all that is against a set."""
    rules = Rules(recorded, wishes)
    texts = (rejection.text for axis in chosen for rejection in rules.rejections(chosen, axis))
    return tuple(dict.fromkeys(texts))


def _beside(recorded: Recorded, stack: Stack) -> Iterator[str]:
    """Yield the requirements on packages of any version without which an exclusion of the catalog may match."""
    for exclusion in recorded.catalog.exclusions:
        depends = exclusion.when.depends_on(stack) or ()
        if len(depends) == 1 and (bound := exclusion.when.bounds[depends[0]].text).startswith(">="):
            yield f"{depends[0]}<{bound[2:]}"


def _evidence(recorded: Recorded, wishes: Wishes, chosen: Chosen, axis: str) -> Iterator[FitEvidence]:
    """Yield how it is known that the release on an axis goes with the others, the strongest first."""
    texts = [*_ruled(recorded, wishes, chosen, axis), *_of_calls(recorded, wishes, chosen, axis)]
    for owner, release, extras in Rules(recorded, wishes).declaring(chosen):
        for name, limits in release.ranges(chosen[PYTHON].version, extras).items():
            if component_named(name) == axis and str(limits):
                texts.append(FitEvidence("declared", f"{release.package} {release.version} declares {name}{limits}"))
        if owner == axis and release.requires_python:
            texts.append(FitEvidence("declared", f"needs Python {release.requires_python}"))
    if axis == TORCH and (driver := wishes.given.get(DRIVER)) and (cuda := chosen[axis].fixes.get(CUDA)):
        fits = wheels_fitting(recorded.catalog, cuda, driver)
        texts.insert(0, FitEvidence("unknown" if fits.fit is Fit.UNKNOWN else "read", f"CUDA {cuda}: {fits.reason}"))
    kinds = ("run", "read", "declared", "unknown")
    yield from sorted(texts, key=lambda one: kinds.index(one.kind))
    if not any(item.kind in kinds[:2] for item in texts):
        yield FitEvidence("unknown", "nothing that the catalog has run or read is about it")


def _ruled(recorded: Recorded, wishes: Wishes, chosen: Chosen, axis: str) -> Iterator[FitEvidence]:
    """Yield the rules of failures that bound the release and state that the set works; first those of several axes."""
    stack = stack_of(wishes, chosen)
    fixed = {component: name for name, candidate in chosen.items() for component in candidate.fixes}
    items = []
    for failure in recorded.catalog.failures:
        ruling = failure.ruling(stack)
        rule = ruling.rule
        if rule and ruling.expectation is Expectation.WORKS and set(rule.bounds) & chosen[axis].fixes.keys():
            kind = "run" if RUN.search(rule.reason) else "read"
            axes_bound = {fixed[name] for name in rule.bounds if name in fixed}
            items.append((len(axes_bound), FitEvidence(kind, f"{failure.id} works: {rule.reason}")))
    yield from (item for _, item in sorted(items, key=lambda row: -row[0]))


def _of_calls(recorded: Recorded, wishes: Wishes, chosen: Chosen, axis: str) -> Iterator[FitEvidence]:
    """Yield what level contract read of the calls between the release and the others."""
    stack = stack_of(wishes, chosen)
    for pair in CALL_PAIRS:
        sides = (pair.consumer, pair.provider)
        if axis not in sides or not all(stack.version(side) for side in sides):
            continue
        calls, problems = calls_of(pair, recorded.catalog, Stack({name: stack[name] for name in sides}), ())
        text = (
            f"calls of {component_title(sides[0])} {stack[sides[0]]} into {component_title(sides[1])} {stack[sides[1]]}"
        )
        if problems:
            yield FitEvidence("unknown", f"{text}: {'; '.join(problems.values())}")
        else:
            count = sum(len(call.findings) for call in calls)
            broken = f"{count} break{'s' * (count == 1)}, with options alone" if count else "none breaks"
            yield FitEvidence("read", f"{text}: {broken}")


def _installed(recorded: Recorded, wishes: Wishes, chosen: Chosen) -> Iterator[Installed]:
    """Yield the distributions of a set in the order of their installation: wheels, then what is built."""
    python, torch = chosen[PYTHON].version, chosen.get(TORCH)
    cuda = torch.fixes.get(CUDA, "") if torch else ""
    names = {axis: candidate.version for axis, candidate in chosen.items() if axis not in (PYTHON, TORCH)}
    if torch:
        yield Installed(TORCH, torch.version, backend=torch.backend)
    if TE in names and cuda:
        names |= {cuda_package(cuda): names[TE], EXTENSION: names[TE]}
    if wishes.framework:
        names[wishes.framework.name] = wishes.framework.version
    built = []
    for name, version in names.items():
        release = recorded.distributions.of(name, version)
        row = next((row for row in recorded.builds.source_build if row.package == name), None)
        needs = row.needs if row else "a compiler"
        minutes = (row and row.minutes) or "build time not known"
        if row and row.clone:
            built.append(Installed(name, version, "clone", needs, row.clone, minutes))
            continue
        if release is None or release.has_wheel(python, wishes.machine):
            yield Installed(name, version)
            continue
        attached = any(
            row.package == name
            and wishes.machine in row.machines
            and torch
            and row.fits(version, python, torch.version, cuda)
            for row in recorded.builds.attached
        )
        way = "attached wheel" if attached else "build"
        built.append(Installed(name, version, way, needs, minutes="" if attached else minutes))
    if torch and torch.replaced:
        lifted = "; ".join(_against(recorded, wishes, {**chosen, TORCH: torch.as_brought}))
        for name, version in torch.replaced.items():
            needs = f"torch declares {version}, with which: {lifted}"
            yield Installed(library_package(name, cuda), torch.fixes[name], UPGRADE, needs)
    yield from built


def near_image(recorded: Recorded, wishes: Wishes, made: FittingSet) -> NearImage | None:
    """Return the image that has most of a set, the newest of several; none that the driver is too old for."""
    versions = {**made.versions, **wishes.given}
    images: list[tuple[int, int, NearImage]] = []
    for index, image in enumerate(recorded.catalog.containers):
        fits = fitting(recorded.catalog, image, wishes.given[DRIVER]) if DRIVER in wishes.given else None
        if fits and fits.fit is Fit.TOO_OLD:
            continue
        near = compared(
            image, {name: versions[name] for name in COMPARED if name in versions}, fits.reason if fits else ""
        )
        if near.alike:
            images.append((len(near.alike), index, near))
    return max(images, key=lambda row: row[:2])[2] if images else None


def compared(image: Container, versions: Mapping[str, str], driver: str) -> NearImage:
    """Return what of these versions an image has, by minor, and what it has otherwise or not as far as is known."""
    contents = image.contents()
    alike, otherwise = {}, {}
    for name, version in versions.items():
        has = contents.version(name)
        if has and minor(has) == minor(version):
            alike[name] = has
        else:
            otherwise[name] = has or "not known"
    return NearImage(str(image.id), alike, otherwise, driver)
