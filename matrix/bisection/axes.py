"""What can be bisected: ordered points, each of which is a case of one failure with everything else held fixed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from matrix.bisection.ancestry import Ancestry
from matrix.bisection.clone import Clone, Commit
from matrix.catalog.failure import Case, Expectation, Failure, Level, Package
from matrix.catalog.model import Catalog, Wheels
from matrix.catalog.versions import NONE, is_version, parse
from matrix.contract import recording
from matrix.errors import MatrixError, closest
from matrix.planning.cases import plan_case
from matrix.planning.planned import Planned
from matrix.provision import sources


class AxisName(str, Enum):
    """What changes along an axis."""

    TORCH = "torch"
    TE = "te"
    MCORE = "mcore"
    CONTAINER = "container"
    DRIVER = "driver"


PACKAGES: Final = {AxisName.MCORE: Package.MCORE, AxisName.TE: Package.TE}


@dataclass(frozen=True)
class Side:
    """One package under test: its version, and where it comes from when that is not PyPI or the catalog."""

    version: str = NONE
    source: str = ""

    def __str__(self) -> str:
        return self.source or self.version


@dataclass(frozen=True)
class Subject:
    """What is asked at every point: a case of a failure at a level, and the sides that the axis does not change."""

    catalog: Catalog
    failure: Failure
    case: Case
    level: Level
    base: str = ""
    mcore: Side = field(default_factory=Side)
    te: Side = field(default_factory=Side)
    driver: str = NONE

    def planned(self) -> Planned:
        """Return the case. Of what is no release and in no entry of the catalog, nothing is expected."""
        cell = self.catalog.cell(self.base, mcore=self.mcore.version, te=self.te.version, driver=self.driver)
        planned = plan_case(self.catalog, self.failure, self.case, self.level, cell)
        if not self.mcore.source and not self.te.source:
            return planned
        source, te_source = self.mcore.source or planned.source, self.te.source or planned.te_source
        return replace(planned, source=source, te_source=te_source, expectation=Expectation.UNKNOWN)

    def with_side(self, axis: AxisName, side: Side) -> Subject:
        """Return the subject with another side; on the axes torch and container the side is a base's id."""
        if axis is AxisName.DRIVER:
            return replace(self, driver=side.version)
        if axis in PACKAGES:
            return replace(self, mcore=side) if axis is AxisName.MCORE else replace(self, te=side)
        return replace(self, base=side.version)


@dataclass(frozen=True)
class Point:
    """A point of an axis: `id` as a person names it, `label` with what else tells it apart."""

    id: str
    label: str


@dataclass(frozen=True)
class BisectionAxis:
    """A stretch of a history, its ends included. `case_at` gives the case of a place when it is to be asked."""

    name: AxisName
    points: tuple[Point, ...]
    order: Ancestry
    case_at: Callable[[int], Planned]
    notes: tuple[str, ...] = ()
    commits: tuple[Commit, ...] = ()  # of an axis of commits,
    clone: str = ""  # and where they are


def side_of(text: str, package: Package) -> Side:
    """Return the side that a person names: a version, PATH@REV, a folder, a wheel. Raises MatrixError."""
    if not text or is_version(text):
        return Side(text or NONE)
    contents = sources.inspect(sources.parse(text, package.value))
    return Side(contents.version, str(contents.source))


def releases(
    subject: Subject, axis: AxisName, first: str, last: str, base_of: Callable[[str], str] = str
) -> tuple[BisectionAxis, bool]:
    """Return the releases from `first` to `last` ("" = the oldest, the newest), and whether they had to be swapped.

    Both must be releases of the axis. Those between them that may not exist in such a cell are left out, and said.
    `base_of` gives the base that an image is asked on: itself, or what stands for it.
    """
    known = released(subject, axis)
    if axis is AxisName.CONTAINER:
        of = family(first or last or max(known, key=lambda id: sum(family(id) == family(one) for one in known)))
        known = {id: base_of(id) for id in known if family(id) == of}
    ids = list(known)
    for name in (first, last):
        if name and name not in known:
            raise MatrixError(
                f"no such point on the axis {axis.value}", got=name, expected=f"{ids[0]} ... {ids[-1]}",
                fix=closest(name, ids) + "; a commit needs --repo CLONE",
            )  # fmt: skip
    ends = ids.index(first) if first else 0, ids.index(last) if last else len(ids) - 1
    asked = ids[min(ends) : max(ends) + 1]
    subjects = {id: subject.with_side(axis, Side(known[id])) for id in asked}
    excluded = {id: subject.catalog.excluded(one.planned().cell) for id, one in subjects.items()}
    for id in (asked[0], asked[-1]):
        if excluded[id]:
            raise MatrixError("an end that may not exist in such a cell", got=id, expected=excluded[id])
    left = [id for id in asked if not excluded[id]]
    notes = tuple(f"left out {id}: {reason}" for id, reason in excluded.items() if reason)
    if axis is AxisName.CONTAINER and any(known[id] != id for id in left):
        notes += ("images that can't run here are stood for by their twins, in parentheses: the torch is theirs alone",)
    made = BisectionAxis(
        axis,
        tuple(Point(id, id if known[id] == id else f"{id} ({known[id]})") for id in left),
        Ancestry.chain(len(left)),
        lambda place: subjects[left[place]].planned(),
        notes,
    )
    return made, ends[0] > ends[1]


def released(subject: Subject, axis: AxisName) -> dict[str, str]:
    """Return what is on an axis, oldest first: id -> the version, or the base that provides it."""
    catalog, contract = subject.catalog, subject.level is Level.CONTRACT
    if axis is AxisName.TORCH:
        return {base.torch: base.id for base in sorted(catalog.wheels, key=lambda base: parse(base.torch))}
    if axis is AxisName.CONTAINER:
        return {id: id for id in sorted(image.id for image in catalog.containers)}  # the month ends an id
    if axis is AxisName.DRIVER:
        branches = sorted({driver.branch for driver in catalog.drivers}, key=parse)
        return {branch: branch for branch in branches}
    group = catalog.megatron_core if axis is AxisName.MCORE else catalog.transformer_engine
    versions = [str(release.version) for release in group if release.on_pypi]
    return {version: version for version in (recording.released(PACKAGES[axis].value) if contract else versions)}


def family(image: str) -> str:
    """Return the series that an image is of: ngc for ngc-24.07."""
    return image.rpartition("-")[0]


def commits(subject: Subject, axis: AxisName, clone: Clone, old: Commit, new: Commit) -> BisectionAxis:
    """Return the commits that lead from `old` to `new`. Raises MatrixError when `new` does not descend from `old`."""
    history = clone.between(old.id, new.id)
    place_of = {commit.id: place for place, commit in enumerate(history)}
    if history[-1].id != new.id:
        raise MatrixError("one end does not descend from the other", where=clone.path, got=f"{old.id}..{new.id}")
    parents = [[place_of[one] for one in commit.parents if one in place_of] for commit in history]
    parents[0] = []
    return BisectionAxis(
        axis,
        tuple(Point(commit.id, str(commit)) for commit in history),
        Ancestry.of_parents(parents),
        lambda place: at_commit(subject, axis, clone, history[place].id),
        (f"{len(history) - 1} commits of {clone.path} that descend from {old.id[:10]}, merges and side branches too",),
        tuple(history),
        clone.path,
    )


def at_commit(subject: Subject, axis: AxisName, clone: Clone, commit: str) -> Planned:
    """Return the case at a commit of a clone."""
    return subject.with_side(axis, Side(clone.version(commit), str(clone.source(commit)))).planned()


def cheapest_level(failure: Failure) -> Level:
    """Return the least real level at which the failure has a case. Raises MatrixError when it has none."""
    levels = {level for case in failure.case for level in case.levels}
    found = next((level for level in Level if level in levels), None)
    if found is None:
        raise MatrixError("the catalog has no reproduction of this failure yet", got=failure.id)
    return found


def choose_case(failure: Failure, level: Level | None, name: str) -> tuple[Case, Level]:
    """Return the case and level that are asked: as named, or the first case at the least real level."""
    cases = {str(case.name): case for case in failure.case}
    if name and name not in cases:
        raise MatrixError("no such case", got=name, expected=f"a case of {failure.id}", fix=closest(name, cases))
    wanted = level or (cases[name].levels[0] if name else cheapest_level(failure))
    fitting = [case for case in failure.case if wanted in case.levels and name in ("", case.name)]
    if not fitting:
        raise MatrixError(
            f"no such case at level {wanted.value}", got=name or failure.id,
            expected=", ".join(f"{case.name} at {'/'.join(one.value for one in case.levels)}" for case in failure.case),
        )  # fmt: skip
    return fitting[0], wanted


def base_for(subject: Subject, named: str, torch: str, axis: AxisName) -> str:
    """Return the base that all points share: as named, by its torch, or the reader at level contract."""
    catalog = subject.catalog
    if named and torch:
        raise MatrixError("a base has its torch", got=f"--base {named} --torch {torch}", fix="leave one out")
    if named:
        return catalog.base(named).id
    if torch:
        found: Sequence[Wheels] = [base for base in catalog.wheels if base.torch == torch]
        if not found:
            raise MatrixError(
                "no base has this torch", got=torch, fix=closest(torch, [b.torch for b in catalog.wheels])
            )
        return found[0].id
    if subject.level is Level.CONTRACT:
        return catalog.readers[0].id
    if axis in (AxisName.TORCH, AxisName.CONTAINER):
        return ""  # each point brings its own
    raise MatrixError(f"level {subject.level.value} runs on a base", got="none", fix="name one: --torch 2.4.1")
