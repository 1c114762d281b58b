"""The axes of a bisection: ordered points, each a case of one failure with everything else held fixed.

Commits are those of a clone, which is read by blob id: nothing is checked out, fetched or written. A bare clone is
enough; uncommitted changes of a work tree are ignored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import groupby
from typing import Any, Final

from matrix.ground.cases.cells import excluded as excluded_from
from matrix.ground.cases.cells import package_sets, plan_case
from matrix.ground.catalog.failure import Case, Expectation, Failure, Level
from matrix.ground.catalog.model import Catalog, Wheels
from matrix.ground.catalog.stack import (
    ABSENT,
    BASE,
    DRIVER,
    MCORE,
    NOTHING,
    PYTHON,
    TE,
    TORCH,
    WRITER_MCORE,
    Stack,
    Value,
    component_title,
    components,
    known_component,
)
from matrix.ground.catalog.versions import is_version, parse
from matrix.ground.errors import MatrixError, closest
from matrix.ground.verdicts.planned import Planned
from matrix.ground.verdicts.text import one_line
from matrix.prove.bisection.search import Ancestry, unchanged
from matrix.read import package_source, trees
from matrix.read.api import recording
from matrix.read.git import Repository
from matrix.read.package_source import Source, SourceKind

SUBJECT = 120  # characters shown of a commit's first line
FIELDS = "%H%x00%P%x00%cs%x00%s"  # commit, parents, date, subject


@dataclass(frozen=True)
class Commit:
    """One commit. `parents` are whole ids; `date` is YYYY-MM-DD, of the committer."""

    id: str
    parents: tuple[str, ...]
    date: str
    subject: str

    def __str__(self) -> str:
        return f"{self.id[:10]} ({self.date}) {one_line(self.subject, SUBJECT)}"


class Clone(AbstractContextManager["Clone"]):
    """A clone whose commits are read; a context manager around its repository."""

    def __init__(self, path: str, package: str, *, compiled: bool = False) -> None:
        self.package = package
        source = package_source.parse(f"{path}@HEAD", package)  # raises MatrixError for a wrong path
        self.path, self._layout = source.location, source.layout
        self.taken = self._layout.taken(compiled=compiled)  # the paths of all that a cell gets from a commit
        self._repository = Repository(self.path)

    def __exit__(self, *error: Any) -> None:
        self._repository.__exit__(*error)

    def source(self, commit: str) -> Source:
        """Return the source of a commit: PATH@COMMIT."""
        return Source(self.package, SourceKind.GIT, self.path, commit)

    def commit(self, revision: str) -> Commit:
        """Return the commit of a revision. Raises MatrixError when it is missing or belongs to another project."""
        return self._log("-1", package_source.inspect(self.source(revision)).identity.split()[1])[0]

    def version(self, commit: str) -> str:
        """Return the version that a commit declares, with the commit as local version."""
        text_of = self._repository.text(commit)
        return f"{trees.declared(self._layout, f'{self.path}@{commit[:10]}', text_of)}+{commit[:7]}"

    def content(self, commit: str) -> tuple[str, ...]:
        """Return the ids of all that a cell gets from a commit: equal ones are equal commits."""
        return tuple(self._repository.id(f"{commit}:{path}") for path in self.taken)

    def between(self, old: str, new: str) -> list[Commit]:
        """Return the commits that descend from `old` and that `new` descends from, parents first, both ends included.

        A commit that does not descend from `old` may lack a change that `old` has, and match the new end for that
        reason alone.
        """
        if old == new:
            return self._log("-1", old)
        inside = self._log("--topo-order", "--reverse", "--ancestry-path", f"{old}..{new}")
        return [*self._log("-1", old), *inside]

    def fork(self, one: str, other: str) -> str:
        """Return the merge base of two commits, "" where the histories are unrelated."""
        return self._repository.git("merge-base", one, other).out.strip()

    def files(self, commit: str, part: Callable[[str], bool]) -> dict[str, str]:
        """Return path -> blob id of the package's files that `part` selects."""
        return self._repository.files(commit, self._layout.folder, part)

    def blobs(self, files: Mapping[str, str]) -> dict[str, bytes]:
        """Return path -> content."""
        return {path: self.blob(id) for path, id in files.items()}

    def blob(self, id: str) -> bytes:
        """Return the content of a file."""
        return self._repository.object(id)[1]

    def _log(self, *arguments: str) -> list[Commit]:
        rows = self._repository.history(FIELDS, *arguments)
        return [Commit(id, tuple(parents.split()), date, subject) for id, parents, date, subject in rows]


SOURCED: Final = {"mcore": MCORE, "te": TE}  # the packages that a stack may have from a clone, a folder or a wheel
# The components whose points the catalog lists, by their words on the command line. `writer` wrote the checkpoint.
WORDS: Final = {
    "torch": TORCH,
    "te": TE,
    "mcore": MCORE,
    "python": PYTHON,
    "container": BASE,
    "driver": DRIVER,
    "writer": WRITER_MCORE,
}
AXIS_WORDS: Final = {component: word for word, component in WORDS.items()}
SIDE: Final = "a version, PATH@REV of a clone, a folder or a wheel"
# The packages that a point can take from a clone, by the component that they are in its stack.
PACKAGES: Final = {MCORE: MCORE, TE: TE, WRITER_MCORE: MCORE}


def axis_named(word: str) -> str:
    """Return the component that a word means: any package, too. Raises MatrixError for what can't be varied alone."""
    component = WORDS.get(word) or known_component(word)
    if component not in WORDS.values() and not components()[component].distribution:
        expected = f"{', '.join(WORDS)}, or a package"
        raise MatrixError(
            f"{component_title(component)} can't be varied alone", got=f"--axis {word}", expected=expected
        )
    return component


def axis_word(component: str) -> str:
    """Return the word of a component on the command line: a package's own name."""
    return AXIS_WORDS.get(component, component)


@dataclass(frozen=True)
class Subject:
    """The case that every point runs: of a failure, at a level, on a stack of which the axis changes one component.

    `stack` has the base, where the points share one, and what is laid over it. `sources` are, by component, those of
    the packages that are neither from PyPI nor the catalog's. `compiled`: Transformer Engine from a source has its
    extension. `listed` returns the releases of a package that the index has for a Python.
    """

    catalog: Catalog
    failure: Failure
    case: Case
    level: Level
    stack: Stack = NOTHING
    sources: Mapping[str, str] = field(default_factory=dict)
    compiled: bool = False
    listed: Callable[[str, str], Sequence[str]] = lambda package, python: ()

    @property
    def base(self) -> str:
        """Return the id of the base, "" where each point has its own."""
        return self.stack.version(BASE) or ""

    def planned(self) -> Planned:
        """Return the planned case. A package with a source of its own has no expectation in the catalog: UNKNOWN."""
        laid = {name: self.stack[name] for name in (MCORE, TE, DRIVER, WRITER_MCORE)}
        further = {name: value for name, value in self.stack.versions.items() if name not in (BASE, *laid)}
        packages = {**affected_packages(self.failure), **further}
        cell = self.catalog.cell(self.base, {**laid, **packages}, packages)
        planned = plan_case(self.catalog, self.failure, self.case, self.level, cell, compiled=self.compiled)
        if not self.sources:
            return planned
        return replace(
            planned,
            source=self.sources.get(MCORE, planned.source),
            te_source=self.sources.get(TE, planned.te_source),
            writer_source=self.sources.get(WRITER_MCORE, ""),
            expectation=Expectation.UNKNOWN,
        )

    def with_(self, component: str, value: Value, source: str = "") -> Subject:
        """Return the subject with another value of a component, and its source; a torch comes with its base."""
        sources = {name: text for name, text in self.sources.items() if name != component}
        changed = {**sources, component: source} if source else sources
        return replace(self, stack=self.stack.with_({component: value}), sources=changed)

    def text(self, component: str) -> str:
        """Return the source or the version of a component, "none" where it is absent."""
        stack = self.stack if component != TORCH else self.catalog.cell(self.base).stack
        return self.sources.get(component) or str(stack[component])


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
class AxisPoint:
    """A point of an axis: `id` names it on the command line, `label` adds its twin, or its date and subject."""

    id: str
    label: str


@dataclass(frozen=True)
class BisectionAxis:
    """A stretch of a component's history, both ends included. `case_at` plans the case of a place on demand."""

    component: str
    points: tuple[AxisPoint, ...]
    order: Ancestry
    case_at: Callable[[int], Planned]
    notes: tuple[str, ...] = ()
    commits: tuple[Commit, ...] = ()  # on an axis of commits
    clone: str = ""  # the path of their clone


def read_package(text: str, package: str) -> tuple[Value, str]:
    """Return the version that `text` names, and its source unless that is PyPI: ABSENT for "". Raises MatrixError.

    `text` is a version, PATH@REV, a folder or a wheel.
    """
    if not text or is_version(text):
        return text or ABSENT, ""
    contents = package_source.inspect(package_source.parse(text, package))
    return contents.version, str(contents.source)


def releases(
    subject: Subject, axis: str, first: str, last: str, base_of: Callable[[str], str] = str
) -> tuple[BisectionAxis, bool]:
    """Return the releases from `first` to `last` ("" = the oldest, the newest), and whether they had to be swapped.

    Both must be releases of the axis. Releases that the catalog excludes from such a cell are left out, also as the
    oldest and the newest, and listed in the notes. `base_of` maps an image to the base that runs it: itself or its
    twin. Raises MatrixError.
    """
    package = axis not in WORDS.values()
    listed = subject.listed(axis, str(subject.planned().cell.stack[PYTHON])) if package else ()
    release_of = released(subject, axis, first, last, *listed)
    if axis == TORCH:
        release_of = {torch: base_of(base) for torch, base in release_of.items()}
    if axis == BASE:
        sizes = Counter(map(family, release_of))
        series = family(first or last or max(release_of, key=lambda id: sizes[family(id)]))
        release_of = {id: base_of(id) for id in release_of if family(id) == series}
    ids = list(release_of)
    _check_ends(axis, ids, first, last)
    ends = ids.index(first) if first else 0, ids.index(last) if last else len(ids) - 1
    selected = ids[min(ends) : max(ends) + 1]
    varied = BASE if axis in (TORCH, PYTHON) else axis
    subjects = {id: subject.with_(varied, release_of[id]) for id in selected}
    excluded = {id: excluded_from(subject.catalog, subject.failure, one.planned().cell) for id, one in subjects.items()}
    for id in (first, last):
        if id and excluded[id]:
            raise MatrixError("the catalog excludes an end of the axis", got=id, expected=excluded[id])
    included = [id for id in selected if not excluded[id]]
    stretches = [(reason, [*ids]) for reason, ids in groupby(excluded, excluded.__getitem__) if reason]
    notes = tuple(f"left out {' to '.join(dict.fromkeys((ids[0], ids[-1])))}: {reason}" for reason, ids in stretches)
    if package and not listed:
        notes += (f"the index lists no releases of {axis}: the points are the ends and what the catalog names",)
    if axis == BASE and any(release_of[id] != id for id in included):
        notes += ("twins (in parentheses) replace images that can't run on this machine: the torch is the twin's",)
    axis_of_releases = BisectionAxis(
        axis,
        tuple(AxisPoint(id, id if release_of[id] == id else f"{id} ({release_of[id]})") for id in included),
        Ancestry.chain(len(included)),
        lambda place: subjects[included[place]].planned(),
        notes,
    )
    return axis_of_releases, ends[0] > ends[1]


def _check_ends(axis: str, ids: Sequence[str], *ends: str) -> None:
    """Raise MatrixError for an end that is no point of the axis; "" is none."""
    for name in ends:
        if name and name not in ids:
            raise MatrixError(
                f"no such point on the axis {axis_word(axis)}",
                got=name,
                expected=f"{ids[0]} ... {ids[-1]}",
                fix=closest(name, ids) + "; a commit needs --repo CLONE",
            )


def released(subject: Subject, axis: str, *named: str) -> dict[str, str]:
    """Return the points of an axis, oldest first: id -> the version, or the base that provides it.

    Of a package without recorded releases they are the versions that the catalog names, and those in `named`.
    """
    catalog, contract = subject.catalog, subject.level is Level.CONTRACT
    if axis == PYTHON:
        minors = {python for base in catalog.standard for python in (*base.pythons, *base.fallbacks)}
        bases = {minor: catalog.base_on(subject.base, minor) for minor in sorted(minors, key=parse)}
        return {minor: base for minor, base in bases.items() if base}
    if axis not in WORDS.values():
        pinned = [base.contents(python).version(axis) for base in catalog.wheels for python in base.pythons]
        open_ = [package.version for package in subject.failure.package if axis == str(package.name)]
        stated = {version for version in (*pinned, *open_, *named) if version and is_version(version)}
        return {version: version for version in sorted(stated, key=parse)}
    if axis == TORCH:
        return {base.torch: base.id for base in sorted(catalog.standard, key=lambda base: parse(base.torch))}
    if axis == BASE:
        return {id: id for id in sorted(image.id for image in catalog.containers)}  # an id ends with its month
    if axis == DRIVER:
        branches = sorted({driver.branch for driver in catalog.drivers}, key=parse)
        return {branch: branch for branch in branches}
    group = catalog.transformer_engine if axis == TE else catalog.megatron_core
    versions = [str(release.version) for release in group if release.on_pypi]
    return {version: version for version in (recording.released(PACKAGES[axis]) if contract else versions)}


def family(image: str) -> str:
    """Return the series of an image: ngc for ngc-24.07."""
    return image.rpartition("-")[0]


def commits(subject: Subject, axis: str, clone: Clone, old: Commit, new: Commit) -> BisectionAxis:
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
        tuple(AxisPoint(commit.id, str(commit)) for commit in changed),
        Ancestry.of_parents(parents, unchanged_from),
        cache(lambda place: at_commit(subject, axis, clone, changed[place].id)),  # also after the clone is closed
        tuple(notes),
        tuple(changed),
        clone.path,
    )


def at_commit(subject: Subject, axis: str, clone: Clone, commit: str) -> Planned:
    """Return the planned case at a commit of a clone."""
    return subject.with_(axis, clone.version(commit), str(clone.source(commit))).planned()


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


def base_for(subject: Subject, named: str, torch: str, axis: str) -> str:
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
    if axis in (TORCH, BASE):
        return ""
    raise MatrixError(f"level {subject.level.value} runs on a base", got="none", fix="name one: --torch 2.4.1")
