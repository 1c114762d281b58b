"""Consistency checks of the whole catalog, beyond the type of each key: a table of rules by the parts of an entry."""

from __future__ import annotations

import json
import re
import signal
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from matrix.ground.catalog.failure import LAUNCHERS, Case, Failure, Level, NightShare, Pick, Rule, Signature
from matrix.ground.catalog.folders import ENTRY
from matrix.ground.catalog.model import Catalog
from matrix.ground.catalog.reach import Condition, ReachedBy
from matrix.ground.catalog.stack import (
    BASE,
    EVERYTHING,
    MCORE,
    PYTHON,
    TE,
    TORCH,
    WRITER,
    Clause,
    Stack,
    component_title,
    components,
    short,
)
from matrix.ground.catalog.versions import Range, inside, is_version, parse
from matrix.ground.errors import CombinedError, MatrixError, closest

MOST_RANKS: Final = 1024  # ranks, GPUs of a case: 16 are the most that a case has, on one machine
MOST_S: Final = 86_400  # seconds of a case's deadline; the longest case takes minutes
FUNCTION: Final = re.compile(r"([^\W\d]\w*:)?[^\W\d]\w*")  # [MODULE:]FUNCTION of a failure's folder
FRAME: Final = re.compile(r"[^:]+\.py:(\w+|<module>)")
NATIVE: Final = re.compile(r"~?\w+(::~?\w+)*")  # function of a native stack, or the end of its qualified name
RELEASED: Final = (MCORE, TE)  # of which the catalog lists the releases
KINDS: Final = ("definite", "misbound")  # values of ContractCall.kind
Problems = Iterator[MatrixError]


def check(catalog: Catalog, folder: Path) -> None:
    """Raise CombinedError with all problems: ids used twice, missing targets, rules that match no known cell, and more.

    The entries are checked where the tables have no problem.
    """
    errors = list(_tables(catalog, folder))
    if not errors:
        values = known(catalog)
        names: Mapping[str, Collection[str]] = {
            "base": {**catalog.bases, **catalog.by_python},
            "failure": {failure.id for failure in catalog.failures},
            "launcher": LAUNCHERS,
            "package with a clone": (MCORE, TE),
            "signal": signal.Signals.__members__,
            "topic": {topic.id for topic in catalog.topics},
        }
        errors += _constraints(catalog, values, f"{folder / 'constraints.toml'}")
        for failure in catalog.failures:
            errors += _entry(CheckedEntry(failure, catalog, values, names), str(failure.folder / ENTRY))
    if errors:
        raise CombinedError(errors)


def _problem(where: str, key: str, what: str, expected: str, got: object = None, fix: str | None = None) -> MatrixError:
    return MatrixError(what, where=where + key, got=got, expected=expected, fix=fix)


def _unique(ids: Iterable[str], where: str) -> Problems:
    repeated = ", ".join(id for id, count in Counter(ids).items() if count > 1)
    if repeated:
        yield MatrixError("an id is used twice", where=where, got=repeated, expected="each id once")


def _known(name: str, names: Iterable[str], what: str, where: str) -> Problems:
    if name not in names:
        fix = closest(name, names)
        yield MatrixError(f"no such {what}", where=where, got=name, expected=f"a known {what}", fix=fix)


def _tables(catalog: Catalog, folder: Path) -> Problems:
    bases = folder / "bases.toml"
    every_base = (*catalog.made, *catalog.images, *catalog.containers)
    yield from _unique((base.id for base in every_base), f"{folder}: bases.toml, containers.toml")
    yield from _unique((failure.id for failure in catalog.failures), "the failures")
    for name in ("megatron_core", "transformer_engine", "torch"):
        releases = (release.version for release in getattr(catalog, name))
        yield from _unique(releases, f"{folder / 'releases.toml'}: {name}")
    for base in catalog.made:
        minors = [*base.pythons, *base.fallbacks]
        if not base.pythons or not all(re.fullmatch(r"3\.\d+", python) for python in minors):
            expected = 'minors in order of preference: ["3.10", "3.11"]'
            yield _problem(
                f"{bases}: {base.id}", ".pythons, fallbacks", "a base without Python minors", expected, minors
            )
    yield from _unique((base.torch for base in catalog.standard), f"{bases}: the torch of wheels without `variant`")


def _constraints(catalog: Catalog, values: Known, path: str) -> Problems:
    for module in catalog.modules:
        if not values.satisfy(module.when):
            problem, expected = "this module is required by no known cell", "at least one cell that needs it"
            yield _problem(path, f": {module.name}.when", problem, expected, module.when)
    for number, exclusion in enumerate(catalog.exclusions):
        at = partial(_problem, path, f": exclude[{number}].when")
        if str(exclusion.when) == EVERYTHING:
            yield at("this exclusion excludes every cell", "a condition on an axis")
        elif not values.satisfy(exclusion.when):
            problem, fix = "this exclusion matches no known cell", "delete it, or correct the bounds"
            yield at(problem, "at least one cell that it excludes", exclusion.when, fix)


@dataclass(frozen=True)
class CheckedEntry:
    """What the rules of an entry read."""

    failure: Failure
    catalog: Catalog
    values: Known
    names: Mapping[str, Collection[str]]


def _entry(entry: CheckedEntry, path: str) -> Problems:
    """Yield the problems of an entry as a whole, and of its parts."""
    failure = entry.failure
    for kind in ("case", "signature"):
        yield from _unique((part.name for part in getattr(failure, kind)), f"{path}: {kind}")
    if failure.topic:
        yield from _known(failure.topic, entry.names["topic"], "topic", f"{path}: topic")
    if failure.contract:
        yield from _known(failure.contract.kind, KINDS, "kind of break", f"{path}: contract.kind")
    running = {level for case in failure.case for level in case.levels} - {Level.CONTRACT}
    if running and BASE not in failure.axes:
        got = f"axes {list(map(short, failure.axes))}, levels {sorted(level.value for level in running)}"
        expected = '"base" among the axes, or cases at level contract alone'
        yield _problem(path, ": axes", "cases that run need the axis base", expected, got)
    names = {**entry.names, "case": [case.name for case in failure.case]}
    for kind, references in REFERENCES.items():
        for part, where in _parts(failure, kind, path):
            for key, target in references:
                values = attrgetter(key)(part) or ()
                for name in (values,) if isinstance(values, str) else values:
                    yield from _known(name, names[target], target, f"{where}.{key}")
            if kind in RULES:
                yield from RULES[kind](entry, part, where)
    yield from _contradictions(entry, path)


def _parts(failure: Failure, kind: str, path: str) -> Iterator[tuple[Any, str]]:
    """Yield the parts of one kind, and where each is."""
    parts = getattr(failure, kind)
    for number, part in enumerate(parts if isinstance(parts, tuple) else filter(None, [parts])):
        label = f" {part.name}" if kind in ("signature", "case") else f"[{number}]"
        yield part, f"{path}: {kind}{'' if kind in ('masked', 'night') else label}"


def _contradictions(entry: CheckedEntry, path: str) -> Problems:
    """Yield each pair of rules of `affected` and `works` that one cell matches."""
    for broken in entry.failure.affected:
        for works in entry.failure.works:
            share_cases = set(broken.cases) & set(works.cases) or not (broken.cases or works.cases)
            if share_cases and entry.values.satisfy(broken, works):
                got, fix = f"affected ({broken}) and works ({works})", "narrow one of the two clauses"
                yield _problem(path, "", "a cell is both in affected and in works", "no cell that both match", got, fix)


def _signature(entry: CheckedEntry, signature: Signature, where: str) -> Problems:
    at = partial(_problem, where)
    keys = ("exception", "message", "signal", "stack", "exit_code", "log")
    if not any(getattr(signature, key) for key in keys):
        expected = "exception, message, signal, stack, exit_code or log"
        yield at("", "a signature that would match any failure", expected)
    if signature.exception is not None and "." in signature.exception:
        fix = f'exception = "{signature.exception.rpartition(".")[2]}"'
        yield at(".exception", "an exception that never matches", "the class name alone", signature.exception, fix)
    if signature.stack is not None and not NATIVE.fullmatch(signature.stack):
        expected = "a function's name, or the end of its qualified name: Class::method"
        yield at(".stack", "not a function of a native stack", expected, signature.stack)
    for key, frame in (("frame", signature.frame), ("through", signature.through)):
        if frame is not None and not FRAME.fullmatch(frame):
            yield at(f".{key}", "not a frame", "file.py:function, or file.py:<module>", frame)


def _case(entry: CheckedEntry, case: Case, where: str) -> Problems:
    at, levels = partial(_problem, where), f"levels {[level.value for level in case.levels]}"
    for key, function in (("run", case.run), ("write", case.write)):
        required = key == "run" and set(case.levels) - {Level.CONTRACT}
        if not FUNCTION.fullmatch(function) and (function or required):
            expected = "a function of reproduction.py, or MODULE:FUNCTION of the failure's folder"
            yield at(f".{key}", "a case without a function", expected, function)
    try:
        json.dumps(dict(case.arguments))
    except (TypeError, RecursionError) as error:  # a date of TOML
        expected = "texts, numbers, booleans, lists and tables"
        yield at(".arguments", "arguments that can't be passed to a rank", expected, error)
    yield from _unique((level.value for level in case.levels), f"{where}.levels")
    bounded = 1 <= case.ranks <= MOST_RANKS and 0 <= case.gpus <= MOST_RANKS and 0 <= case.deadline <= MOST_S
    if not case.levels or not bounded:
        expected = f"a level, ranks of 1 - {MOST_RANKS}, gpus of 0 - {MOST_RANKS}, seconds of 0 - {MOST_S}"
        got = f"{levels}, ranks {case.ranks}, gpus {case.gpus}, deadline {case.deadline}"
        yield at("", "a case that can't run", expected, got)
    rehearsed = Level.GPU in case.levels and not (case.rehearsal and case.no_rehearsal)
    if (case.rehearsal or case.no_rehearsal) and not (rehearsed and case.rehearsal.keys() <= case.arguments.keys()):
        expected = "level gpu, and either `no_rehearsal` or other values of the case's arguments"
        key, got = ".rehearsal" if case.rehearsal else ".no_rehearsal", f"{levels}, rehearsal {dict(case.rehearsal)}"
        yield at(key, "a rehearsal that can't be", expected, got)
    if Level.GPU in case.levels and case.gpus < case.ranks:
        expected = "one for each rank; whether ranks can share one is decided on the machine"
        yield at(".gpus", "a rank without a GPU", expected, f"ranks {case.ranks}, gpus {case.gpus}")
    yield from _pins(case.packages, f"{where}.packages")
    axes = entry.failure.axes
    if bool(case.write) != bool(WRITER.keys() & set(axes)):
        got = f"write {case.write!r}, axes {list(map(short, axes))}"
        expected = "a function that writes the checkpoint, and writer_mcore or writer_te among the axes; or none"
        yield at(".write", "a checkpoint needs a writer and an axis of it", expected, got)


def _pins(packages: Iterable[str], where: str) -> Problems:
    for package in packages:
        name, _, version = package.partition("==")
        if not name or not is_version(version):
            expected = "NAME==VERSION: every run must use the same version"
            yield MatrixError("not a pinned package", where=where, got=package, expected=expected)


def _night(entry: CheckedEntry, night: NightShare, where: str) -> Problems:
    for component, versions in night.releases.items():
        recorded = [release.version for release in entry.catalog.releases(component)]
        for version in versions:
            kind = f"release of {component_title(component)}"
            yield from _known(version, recorded, kind, f"{where}.{short(component)}")


def _pick(entry: CheckedEntry, pick: Pick, where: str) -> Problems:
    for component, version in pick.versions.items():
        recorded = [release.version for release in entry.catalog.releases(component)]
        if component not in (MCORE, TE, TORCH):
            continue
        names = [*recorded, *entry.failure.builds(component)]
        yield from _known(version, names, component_title(component), f"{where}.{short(component)}")


def _works(entry: CheckedEntry, rule: Rule, where: str) -> Problems:
    if entry.catalog.bases.keys() >= set(rule.base) and not entry.values.satisfy(rule):
        text, expected = "this predicate matches no known cell", "at least one base x megatron-core x TE of the catalog"
        fix = "check the bounds against releases.toml and bases.toml, or add the missing entries there"
        yield _problem(where, "", text, expected, rule, fix)


def _affected(entry: CheckedEntry, rule: Rule, where: str) -> Problems:
    """Yield what is wrong with any rule, and a rule whose cells `reached_by` leaves out."""
    yield from _works(entry, rule, where)
    reaches = entry.failure.reached_by
    if reaches and not rule.cases and not any(entry.values.satisfy(rule, reach) for reach in reaches):
        expected = "reached_by for its cells, or no reached_by: always reached"
        yield _problem(where, "", "nothing reaches the cells of this rule", expected, rule)


def _reached_by(entry: CheckedEntry, reach: ReachedBy, where: str) -> Problems:
    at = partial(_problem, where, "")
    for text in (*reach.arguments, *reach.defaults):
        if Condition.parse(text) is None or (text in reach.defaults and " " in text):
            expected = "--flag, not --no-flag, --option == VALUE, --count >= 4; in defaults: --option"
            yield at("not a condition on an argument", expected, text)
    if not (reach.arguments or reach.when):
        yield at("nothing is required", "arguments, or when")
    general = [rule for rule in entry.failure.affected if not rule.cases]
    if not any(entry.values.satisfy(rule, reach) for rule in general):
        yield at("no affected cell is reached this way", "a part of a rule", reach)


# The keys of each part that name something: (key, what).
REFERENCES: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "signature": (("signal", "signal"),),
    "case": (("bases", "base"), ("launcher", "launcher")),
    "package": (),
    "masked": (("by", "failure"), ("cases", "case")),
    "stack": (("cell.base", "base"),),
    "night": (("bases", "base"),),
    "build": (("package", "package with a clone"),),
    "pick": (("base", "base"), ("cases", "case")),
    "reached_by": (),
    "affected": (("base", "base"), ("cases", "case")),
    "works": (("base", "base"), ("cases", "case")),
}
RULES: Final[Mapping[str, Callable[[CheckedEntry, Any, str], Problems]]] = {
    "signature": _signature,
    "case": _case,
    "package": lambda _, package, where: _pins(package.requires, f"{where}.requires"),
    "night": _night,
    "pick": _pick,
    "affected": _affected,
    "works": _works,
    "reached_by": _reached_by,
}


@dataclass(frozen=True)
class Known:
    """Every value in the catalog, by component; torch and Python are part of their base."""

    bases: tuple[Stack, ...]
    others: Mapping[str, tuple[str, ...]]  # in order

    def satisfy(self, *clauses: Clause) -> bool:
        """Return whether a known stack satisfies all clauses. Components outside of bases are independent."""
        bounds: dict[str, list[Range]] = {}
        for clause in clauses:
            for component, bound in clause.bounds.items():
                bounds.setdefault(component, []).append(bound)
        for component in bounds.keys() & self.others.keys():
            if not frozenset.intersection(*(inside(bound.text, self.others[component]) for bound in bounds[component])):
                return False
        fixed = (TORCH, PYTHON)
        if not any(clause.base or not bounds.keys().isdisjoint(fixed) for clause in clauses):
            return True
        on_base = [
            Clause(clause.base, {name: bound for name, bound in clause.bounds.items() if name in fixed})
            for clause in clauses
        ]
        return any(all(clause.matches(stack) for clause in on_base) for stack in self.bases)


def known(catalog: Catalog) -> Known:
    """Return the known values: of releases, builds, the stacks of reports, images, GPUs and driver branches."""
    contents = [base.contents() for base in catalog.bases.values()]
    provided = [base.contents(python) for base in catalog.wheels for python in base.pythons]
    values: dict[str, set[str]] = {"driver": {driver.branch for driver in catalog.drivers}}
    free = {name for name, row in components().items() if row.distribution}.difference(
        RELEASED, *(s.versions for s in provided)
    )
    values["sm"] = {gpu.sm for gpu in catalog.gpus}
    reported = [report.cell.versions for report in catalog.reports]
    for versions in (*reported, *(stack.versions for stack in (*contents, *provided))):
        for component, version in versions.items():
            values.setdefault(component, set()).add(version)
    for component in RELEASED:
        values.setdefault(component, set()).update(release.version for release in catalog.releases(component))
    for failure in catalog.failures:
        for build in failure.build:
            values.setdefault(build.package, set()).add(build.version)
        for package in failure.package:
            values.setdefault(package.name, set()).add(package.version)
        # Users install versions of a package that no table lists: those that a rule names, and the next above.
        for rule in (*failure.affected, *failure.works):
            for component in rule.bounds.keys() & values.keys() & free:
                for version in re.findall(r"\d[^,\s]*", rule.bounds[component].text):
                    values[component] |= {version, f"{version}+0"}
    values |= {writer: values[written] for writer, written in WRITER.items()}
    # `megatrix check` also checks torch releases that no base of the catalog has.
    alone = [Stack({TORCH: release.version}) for release in catalog.torch]
    named = values.keys() - {BASE, TORCH, PYTHON}
    further = {name: tuple(sorted(values[name], key=parse)) for name in named}
    return Known((*contents, *alone), further)
