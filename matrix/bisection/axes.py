"""The axes of a bisection: ordered points, each a case of one failure with everything else held fixed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, ClassVar, Final

from matrix.bisection.ancestry import Ancestry, unchanged
from matrix.bisection.clone import Clone, Commit
from matrix.catalog.failure import Case, Expectation, Failure, Level
from matrix.catalog.model import Catalog, Wheels
from matrix.catalog.stack import (
    ABSENT,
    BASE,
    DRIVER,
    MCORE,
    TE,
    TORCH,
    WRITER_MCORE,
    Value,
    component_title,
    components,
    known_component,
)
from matrix.catalog.versions import NONE, is_version, parse
from matrix.contract import recording
from matrix.errors import MatrixError, closest
from matrix.planning.cases import excluded as excluded_from
from matrix.planning.cases import package_sets, plan_case
from matrix.provision import package_source
from matrix.verdicts.planned import Planned

# The components with an axis of releases, by their words on the command line. `writer` wrote the checkpoint.
WORDS: Final = {"torch": TORCH, "te": TE, "mcore": MCORE, "container": BASE, "driver": DRIVER, "writer": WRITER_MCORE}


class AxisName(str):
    """The component that changes along an axis, by its word on the command line."""

    TORCH: ClassVar[AxisName]
    TE: ClassVar[AxisName]
    MCORE: ClassVar[AxisName]
    CONTAINER: ClassVar[AxisName]
    DRIVER: ClassVar[AxisName]
    WRITER: ClassVar[AxisName]
    __slots__ = ()

    @classmethod
    def of(cls, word: str) -> AxisName:
        """Return the axis of a word, or of any package. Raises MatrixError for what can't be varied alone."""
        if word in WORDS:
            return cls(word)
        name = known_component(word)
        for usual, component in WORDS.items():
            if component == name:
                return cls(usual)
        if not components()[name].distribution:
            expected = f"{', '.join(WORDS)}, or a package"
            raise MatrixError(f"{component_title(name)} can't be varied alone", got=f"--axis {word}", expected=expected)
        return cls(name)


for _word in WORDS:
    setattr(AxisName, _word.upper(), AxisName(_word))

PACKAGES: Final = {AxisName.MCORE: MCORE, AxisName.TE: TE, AxisName.WRITER: MCORE}


@dataclass(frozen=True)
class Side:
    """One package under test: its version, and its source unless that is PyPI or the catalog."""

    version: str = NONE
    source: str = ""

    def __str__(self) -> str:
        return self.source or self.version


@dataclass(frozen=True)
class Subject:
    """The case that every point runs: of a failure, at a level, with the sides that the axis does not change."""

    catalog: Catalog
    failure: Failure
    case: Case
    level: Level
    base: str = ""
    mcore: Side = field(default_factory=Side)
    te: Side = field(default_factory=Side)
    driver: str = NONE
    writer: Side = field(default_factory=Side)
    packages: Mapping[str, str] = field(default_factory=dict)  # further packages, laid over the base
    compiled: bool = False  # Transformer Engine from a source has its extension

    def planned(self) -> Planned:
        """Return the planned case. A side with a source of its own has no expectation in the catalog: UNKNOWN."""
        packages = {**affected_packages(self.failure), **self.packages}
        sides = {MCORE: self.mcore.version, TE: self.te.version, DRIVER: self.driver, WRITER_MCORE: self.writer.version}
        values = {name: ABSENT if version == NONE else version for name, version in sides.items()}
        cell = self.catalog.cell(self.base, {**values, **packages}, packages)
        planned = plan_case(self.catalog, self.failure, self.case, self.level, cell, compiled=self.compiled)
        if not (self.mcore.source or self.te.source or self.writer.source):
            return planned
        return replace(
            planned,
            source=self.mcore.source or planned.source,
            te_source=self.te.source or planned.te_source,
            writer_source=self.writer.source,
            expectation=Expectation.UNKNOWN,
        )

    def with_side(self, axis: AxisName, side: Side) -> Subject:
        """Return the subject with another side; on the axes torch and container the side is a base's id."""
        if axis not in WORDS:
            return replace(self, packages={**self.packages, str(axis): side.version})
        if axis == AxisName.DRIVER:
            return replace(self, driver=side.version)
        changes: dict[str, Any] = {axis: side} if axis in PACKAGES else {"base": side.version}
        return replace(self, **changes)


def affected_packages(failure: Failure) -> dict[str, Value]:
    """Return the open packages of every point: the first set that an affected rule allows."""
    sets = package_sets(failure)
    allowed = (
        packages
        for rule in failure.affected
        for packages in sets
        if all(name not in rule.bounds or str(version) in rule.bounds[name] for name, version in packages.items())
    )
    return next(allowed, sets[0])


@dataclass(frozen=True)
class Point:
    """A point of an axis: `id` names it on the command line, `label` adds its twin, or its date and subject."""

    id: str
    label: str


@dataclass(frozen=True)
class BisectionAxis:
    """A stretch of a history, both ends included. `case_at` plans the case of a place on demand."""

    name: AxisName
    points: tuple[Point, ...]
    order: Ancestry
    case_at: Callable[[int], Planned]
    notes: tuple[str, ...] = ()
    commits: tuple[Commit, ...] = ()  # on an axis of commits
    clone: str = ""  # the path of their clone


def side_of(text: str, package: str) -> Side:
    """Return the side that `text` names: a version, PATH@REV, a folder or a wheel. Raises MatrixError."""
    if not text or is_version(text):
        return Side(text or NONE)
    contents = package_source.inspect(package_source.parse(text, package))
    return Side(contents.version, str(contents.source))


def releases(
    subject: Subject, axis: AxisName, first: str, last: str, base_of: Callable[[str], str] = str
) -> tuple[BisectionAxis, bool]:
    """Return the releases from `first` to `last` ("" = the oldest, the newest), and whether they had to be swapped.

    Both must be releases of the axis. Releases that the catalog excludes from such a cell are left out, also as the
    oldest and the newest, and listed in the notes. `base_of` maps an image to the base that runs it: itself or its
    twin. Raises MatrixError.
    """
    release_of = released(subject, axis, first, last)
    if axis == AxisName.CONTAINER:
        sizes = Counter(map(family, release_of))
        series = family(first or last or max(release_of, key=lambda id: sizes[family(id)]))
        release_of = {id: base_of(id) for id in release_of if family(id) == series}
    ids = list(release_of)
    for name in (first, last):
        if name and name not in release_of:
            raise MatrixError(
                f"no such point on the axis {axis}",
                got=name,
                expected=f"{ids[0]} ... {ids[-1]}",
                fix=closest(name, ids) + "; a commit needs --repo CLONE",
            )
    ends = ids.index(first) if first else 0, ids.index(last) if last else len(ids) - 1
    selected = ids[min(ends) : max(ends) + 1]
    subjects = {id: subject.with_side(axis, Side(release_of[id])) for id in selected}
    excluded = {id: excluded_from(subject.catalog, subject.failure, one.planned().cell) for id, one in subjects.items()}
    for id in (first, last):
        if id and excluded[id]:
            raise MatrixError("the catalog excludes an end of the axis", got=id, expected=excluded[id])
    included = [id for id in selected if not excluded[id]]
    stretches = [(reason, [*ids]) for reason, ids in groupby(excluded, excluded.__getitem__) if reason]
    notes = tuple(f"left out {' to '.join(dict.fromkeys((ids[0], ids[-1])))}: {reason}" for reason, ids in stretches)
    if axis == AxisName.CONTAINER and any(release_of[id] != id for id in included):
        notes += ("twins (in parentheses) replace images that can't run on this machine: the torch is the twin's",)
    axis_of_releases = BisectionAxis(
        axis,
        tuple(Point(id, id if release_of[id] == id else f"{id} ({release_of[id]})") for id in included),
        Ancestry.chain(len(included)),
        lambda place: subjects[included[place]].planned(),
        notes,
    )
    return axis_of_releases, ends[0] > ends[1]


def released(subject: Subject, axis: AxisName, *ends: str) -> dict[str, str]:
    """Return the points of an axis, oldest first: id -> the version, or the base that provides it.

    Of a package without recorded releases they are the versions that the catalog names, and the ends.
    """
    catalog, contract = subject.catalog, subject.level is Level.CONTRACT
    if axis not in WORDS:
        pinned = [base.contents(python).version(axis) for base in catalog.wheels for python in base.pythons]
        open_ = [package.version for package in subject.failure.package if axis == str(package.name)]
        stated = {version for version in (*pinned, *open_, *ends) if version and is_version(version)}
        return {version: version for version in sorted(stated, key=parse)}
    if axis == AxisName.TORCH:
        return {base.torch: base.id for base in sorted(catalog.standard, key=lambda base: parse(base.torch))}
    if axis == AxisName.CONTAINER:
        return {id: id for id in sorted(image.id for image in catalog.containers)}  # an id ends with its month
    if axis == AxisName.DRIVER:
        branches = sorted({driver.branch for driver in catalog.drivers}, key=parse)
        return {branch: branch for branch in branches}
    group = catalog.transformer_engine if axis == AxisName.TE else catalog.megatron_core
    versions = [str(release.version) for release in group if release.on_pypi]
    return {version: version for version in (recording.released(PACKAGES[axis]) if contract else versions)}


def family(image: str) -> str:
    """Return the series of an image: ngc for ngc-24.07."""
    return image.rpartition("-")[0]


def commits(subject: Subject, axis: AxisName, clone: Clone, old: Commit, new: Commit) -> BisectionAxis:
    """Return the commits that lead from `old` to `new`, without those that have all content of one of their parents.

    A commit's parents are then the commits that stand for them. Raises MatrixError when `new` does not descend from
    `old`.
    """
    history = clone.between(old.id, new.id)
    place_of = {commit.id: place for place, commit in enumerate(history)}
    if history[-1].id != new.id:
        raise MatrixError("one end does not descend from the other", where=clone.path, got=f"{old.id}..{new.id}")
    parents = [[place_of[parent] for parent in commit.parents if parent in place_of] for commit in history]
    parents[0] = []
    unchanged_from = unchanged(parents, [clone.content(commit.id) for commit in history])
    like = {place: place for place in range(len(history))}  # the commit that stands for one that is left out
    for place, parent in unchanged_from.items():
        like[place] = like[parent]
    changed = [
        replace(
            commit,
            parents=tuple(
                history[like[place_of[parent]]].id if parent in place_of else parent for parent in commit.parents
            ),
        )
        for place, commit in enumerate(history)
        if place not in unchanged_from
    ]
    notes = [
        f"{len(history) - 1} commits of {clone.path} that descend from {old.id[:10]}, merges and side branches too"
    ]
    if unchanged_from:
        paths = ", ".join(clone.taken)
        notes.append(
            f"{len(unchanged_from)} of them left out: each has the {paths} of a parent, and behaves as that does"
        )
    return BisectionAxis(
        axis,
        tuple(Point(commit.id, str(commit)) for commit in changed),
        Ancestry.of_parents(parents, unchanged_from),
        lambda place: at_commit(subject, axis, clone, changed[place].id),
        tuple(notes),
        tuple(changed),
        clone.path,
    )


def at_commit(subject: Subject, axis: AxisName, clone: Clone, commit: str) -> Planned:
    """Return the planned case at a commit of a clone."""
    return subject.with_side(axis, Side(clone.version(commit), str(clone.source(commit)))).planned()


def choose_case(failure: Failure, level: Level | None, name: str) -> tuple[Case, Level]:
    """Return the case and level to probe: the named ones, or the first case at the least real level."""
    cases = {str(case.name): case for case in failure.case}
    if name and name not in cases:
        raise MatrixError("no such case", got=name, expected=f"a case of {failure.id}", fix=closest(name, cases))
    levels = (
        cases[name].levels if name else [level for level in Level if any(level in case.levels for case in failure.case)]
    )
    if not levels:
        raise MatrixError("the catalog has no reproduction of this failure yet", got=failure.id)
    probed_level = level or levels[0]
    fitting = [case for case in failure.case if probed_level in case.levels and name in ("", case.name)]
    if not fitting:
        levels_of = {case.name: "/".join(possible.value for possible in case.levels) for case in failure.case}
        raise MatrixError(
            f"no such case at level {probed_level.value}",
            got=name or failure.id,
            expected=", ".join(f"{case} at {at}" for case, at in levels_of.items()),
        )
    return fitting[0], probed_level


def base_for(subject: Subject, named: str, torch: str, axis: AxisName) -> str:
    """Return the id of the base that all points share, "" where each point has its own. Raises MatrixError.

    It is the named base, the one with this torch, or the reader at level contract.
    """
    catalog = subject.catalog
    if named and torch:
        raise MatrixError(
            "--base and --torch both select the base", got=f"--base {named} --torch {torch}", fix="leave one out"
        )
    if named:
        return catalog.base(named).id
    if torch:
        bases: Sequence[Wheels] = [base for base in catalog.standard if base.torch == torch]
        if not bases:
            raise MatrixError(
                "no base has this torch", got=torch, fix=closest(torch, [b.torch for b in catalog.standard])
            )
        return bases[0].id
    if subject.level is Level.CONTRACT:
        return catalog.readers[0].id
    if axis in (AxisName.TORCH, AxisName.CONTAINER):
        return ""
    raise MatrixError(f"level {subject.level.value} runs on a base", got="none", fix="name one: --torch 2.4.1")
