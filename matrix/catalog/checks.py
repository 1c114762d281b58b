"""Consistency checks of the whole catalog, beyond the type of each key."""

from __future__ import annotations

import json
import re
import signal
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from matrix.catalog.cell import EVERYTHING, Clause
from matrix.catalog.failure import LAUNCHERS, Failure, Level
from matrix.catalog.folders import ENTRY
from matrix.catalog.model import Catalog
from matrix.catalog.reach import Condition
from matrix.catalog.stack import BASE, MCORE, PYTHON, TE, TORCH, WRITER, Stack, component_title, short
from matrix.catalog.versions import Range, is_version
from matrix.errors import MatrixError, closest

MOST_RANKS: Final = 1024  # ranks, GPUs of a case: 16 are the most that a case has, on one machine
MOST_S: Final = 86_400  # seconds of a case's deadline; the longest case takes minutes
FUNCTION: Final = re.compile(r"([^\W\d]\w*:)?[^\W\d]\w*")  # [MODULE:]FUNCTION of a failure's folder
KINDS: Final = ("definite", "misbound")  # values of ContractCall.kind


def check(catalog: Catalog, folder: Path) -> None:
    """Raise MatrixError for an id used twice, a reference without a target, or a rule that matches no known cell."""
    bases = [base.id for base in (*catalog.made, *catalog.images, *catalog.containers)]
    _unique(bases, f"{folder}: bases.toml, containers.toml")
    _unique((failure.id for failure in catalog.failures), "the failures")
    for name in ("megatron_core", "transformer_engine", "torch"):
        _unique((item.version for item in getattr(catalog, name)), f"{folder / 'releases.toml'}: {name}")
    for base in catalog.made:
        minors = (*base.pythons, *base.fallbacks)
        if not base.pythons or not all(re.fullmatch(r"3\.\d+", python) for python in minors):
            raise MatrixError(
                "a base without Python minors",
                where=f"{folder / 'bases.toml'}: {base.id}.pythons, fallbacks",
                got=list(minors),
                expected='minors in order of preference: ["3.10", "3.11"]',
            )
    _unique(
        (base.torch for base in catalog.standard), f"{folder / 'bases.toml'}: the torch of wheels without `variant`"
    )
    values = known(catalog)
    for failure in catalog.failures:
        _check_failure(failure, catalog, values, str(failure.folder / ENTRY))
    for module in catalog.modules:
        if not values.satisfy(module.when):
            raise MatrixError(
                "this module is required by no known cell", where=f"{folder / 'constraints.toml'}: {module.name}.when",
                got=module.when, expected="at least one cell that needs it",
            )  # fmt: skip
    for place, exclusion in enumerate(catalog.exclusions):
        if str(exclusion.when) == EVERYTHING:
            raise MatrixError(
                "this exclusion excludes every cell",
                where=f"{folder / 'constraints.toml'}: exclude[{place}].when",
                expected="a condition on an axis",
            )
        if not values.satisfy(exclusion.when):
            raise MatrixError(
                "this exclusion matches no known cell",
                where=f"{folder / 'constraints.toml'}: exclude[{place}].when",
                got=exclusion.when,
                expected="at least one cell that it excludes",
                fix="delete it, or correct the bounds",
            )


def _check_failure(failure: Failure, catalog: Catalog, values: Known, where: str) -> None:
    _unique((case.name for case in failure.case), f"{where}: case")
    _unique((signature.name for signature in failure.signature), f"{where}: signature")
    for signature in failure.signature:
        given = (signature.exception, signature.message, signature.signal, signature.stack, signature.exit_code)
        if not any((*given, signature.log)):
            raise MatrixError(
                "a signature that would match any failure",
                where=f"{where}: signature {signature.name}",
                expected="exception, message, signal, stack, exit_code or log",
            )
        if signature.stack is not None and not re.fullmatch(r"~?\w+(::~?\w+)*", signature.stack):
            raise MatrixError(
                "not a function of a native stack",
                where=f"{where}: signature {signature.name}.stack",
                got=signature.stack,
                expected="a function's name, or the end of its qualified name: Class::method",
            )
        for key, frame in (("frame", signature.frame), ("through", signature.through)):
            if frame is not None and not re.fullmatch(r"[^:]+\.py:(\w+|<module>)", frame):
                raise MatrixError(
                    "not a frame",
                    where=f"{where}: signature {signature.name}.{key}",
                    got=frame,
                    expected="file.py:function, or file.py:<module>",
                )
        if signature.signal is not None:
            _known(
                signature.signal, signal.Signals.__members__, "signal", f"{where}: signature {signature.name}.signal"
            )
    if failure.contract is not None and failure.contract.kind not in KINDS:
        raise MatrixError(
            "no such kind of break", where=f"{where}: contract.kind", got=failure.contract.kind,
            expected=" or ".join(KINDS), fix=closest(failure.contract.kind, KINDS),
        )  # fmt: skip
    for case in failure.case:
        for key, function in (("run", case.run), ("write", case.write)):
            needed = key == "run" and set(case.levels) - {Level.CONTRACT}
            if not FUNCTION.fullmatch(function) and (function or needed):
                raise MatrixError(
                    "a case without a function", where=f"{where}: case {case.name}.{key}", got=function,
                    expected="a function of reproduction.py, or MODULE:FUNCTION of the failure's folder",
                )  # fmt: skip
        try:
            json.dumps(dict(case.arguments))
        except (TypeError, RecursionError) as error:  # a date of TOML
            raise MatrixError(
                "arguments that can't be passed to a rank", where=f"{where}: case {case.name}.arguments", got=error,
                expected="texts, numbers, booleans, lists and tables",
            ) from error  # fmt: skip
        _unique((level.value for level in case.levels), f"{where}: case {case.name}.levels")
        bounded = 1 <= case.ranks <= MOST_RANKS and 0 <= case.gpus <= MOST_RANKS and 0 <= case.deadline <= MOST_S
        if not case.levels or not bounded:
            raise MatrixError(
                "a case that can't run",
                where=f"{where}: case {case.name}",
                got=f"levels {[level.value for level in case.levels]}, ranks {case.ranks}, gpus {case.gpus}, "
                f"deadline {case.deadline}",
                expected=f"a level, ranks of 1 - {MOST_RANKS}, gpus of 0 - {MOST_RANKS}, seconds of 0 - {MOST_S}",
            )
        rehearsed = Level.GPU in case.levels and not (case.rehearsal and case.no_rehearsal)
        if (case.rehearsal or case.no_rehearsal) and not (rehearsed and case.rehearsal.keys() <= case.arguments.keys()):
            raise MatrixError(
                "a rehearsal that can't be",
                where=f"{where}: case {case.name}.{'rehearsal' if case.rehearsal else 'no_rehearsal'}",
                got=f"levels {[level.value for level in case.levels]}, rehearsal {dict(case.rehearsal)}",
                expected="level gpu, and either `no_rehearsal` or other values of the case's arguments",
            )
        if Level.GPU in case.levels and case.gpus < case.ranks:
            raise MatrixError(
                "a rank without a GPU",
                where=f"{where}: case {case.name}.gpus",
                got=f"ranks {case.ranks}, gpus {case.gpus}",
                expected="one for each rank; whether ranks can share one is decided on the machine",
            )
        for base in case.bases:
            _known(base, catalog.bases, "base", f"{where}: case {case.name}.bases")
        _known(case.launcher, LAUNCHERS, "launcher", f"{where}: case {case.name}.launcher")
        for package in case.packages:
            _pinned(package, f"{where}: case {case.name}.packages")
        if bool(case.write) != bool(WRITER.keys() & set(failure.axes)):
            raise MatrixError(
                "a checkpoint needs a writer and an axis of it", where=f"{where}: case {case.name}.write",
                got=f"write {case.write!r}, axes {list(map(short, failure.axes))}",
                expected="a function that writes the checkpoint, and writer_mcore or writer_te among the axes; or none",
            )  # fmt: skip
    running = {level for case in failure.case for level in case.levels} - {Level.CONTRACT}
    if running and BASE not in failure.axes:
        raise MatrixError(
            "cases that run need the axis base",
            where=f"{where}: axes",
            got=f"axes {list(map(short, failure.axes))}, levels {sorted(level.value for level in running)}",
            expected='"base" among the axes, or cases at level contract alone',
        )
    for place, named in enumerate(failure.package):
        for pin in named.requires:
            _pinned(pin, f"{where}: package[{place}].requires")
    ids = [one.id for one in catalog.failures]
    for masked in failure.masked:
        _known(masked.by, ids, "failure", f"{where}: masked.by")
        for name in masked.cases:
            _known(name, [one.name for one in failure.case], "case", f"{where}: masked.cases")
    for place, stack in enumerate(failure.stack):
        _known(stack.cell.base, catalog.bases, "base", f"{where}: stack[{place}].cell.base")
    for name in failure.night.bases if failure.night else ():
        _known(name, catalog.bases, "base", f"{where}: night.bases")
    for component, versions in failure.night.releases.items() if failure.night else ():
        recorded = [release.version for release in catalog.releases(component)]
        for version in versions:
            _known(version, recorded, f"release of {component_title(component)}", f"{where}: night.{short(component)}")
    for place, build in enumerate(failure.build):
        _known(build.package, (MCORE, TE), "package with a clone", f"{where}: build[{place}].package")
    for place, pick in enumerate(failure.pick):
        _known(pick.base, catalog.bases, "base", f"{where}: pick[{place}].base")
        for component, version in pick.versions.items():
            recorded = [release.version for release in catalog.releases(component)]
            at = f"{where}: pick[{place}].{short(component)}"
            _known(version, [*recorded, *failure.builds(component)], component_title(component), at)
        for name in pick.cases:
            _known(name, [one.name for one in failure.case], "case", f"{where}: pick[{place}].cases")
    for kind in ("affected", "works"):
        for place, rule in enumerate(getattr(failure, kind)):
            for base in rule.base:
                _known(base, catalog.bases, "base", f"{where}: {kind}[{place}].base")
            for case in rule.cases:
                _known(case, [one.name for one in failure.case], "case", f"{where}: {kind}[{place}].cases")
            if not values.satisfy(rule):
                raise MatrixError(
                    "this predicate matches no known cell",
                    where=f"{where}: {kind}[{place}]",
                    got=rule,
                    expected="at least one base x megatron-core x TE of the catalog",
                    fix="check the bounds against releases.toml and bases.toml, or add the missing entries there",
                )
    _contradiction(failure, values, where)
    _check_reach(failure, values, where)


def _check_reach(failure: Failure, values: Known, where: str) -> None:
    """Raise MatrixError for a condition that is none, and for `reached_by` that leaves a cell of a rule out."""
    general = [rule for rule in failure.affected if not rule.cases]
    for place, way in enumerate(failure.reached_by):
        at = f"{where}: reached_by[{place}]"
        for text in (*way.arguments, *way.defaults):
            if Condition.parse(text) is None or (text in way.defaults and " " in text):
                raise MatrixError(
                    "not a condition on an argument", where=at, got=text,
                    expected="--flag, not --no-flag, --option == VALUE, --count >= 4; in defaults: --option",
                )  # fmt: skip
        if not (way.arguments or way.when):
            raise MatrixError("nothing is required", where=at, expected="arguments, or when")
        if not any(values.satisfy(rule, way) for rule in general):
            raise MatrixError("no affected cell is reached this way", where=at, got=way, expected="a part of a rule")
    for place, rule in enumerate(failure.affected):
        if failure.reached_by and not rule.cases and not any(values.satisfy(rule, way) for way in failure.reached_by):
            raise MatrixError(
                "nothing reaches the cells of this rule", where=f"{where}: affected[{place}]", got=rule,
                expected="reached_by for its cells, or no reached_by: always reached",
            )  # fmt: skip


def _pinned(package: str, where: str) -> None:
    """Raise MatrixError unless `package` is NAME==VERSION."""
    name, _, version = package.partition("==")
    if not name or not is_version(version):
        raise MatrixError(
            "not a pinned package",
            where=where,
            got=package,
            expected="NAME==VERSION: every run must use the same version",
        )


def _known(name: str, known: Iterable[str], what: str, where: str) -> None:
    """Raise MatrixError with a suggestion unless `name` is one of `known`."""
    if name not in known:
        raise MatrixError(
            f"no such {what}", where=where, got=name, expected=f"a known {what}", fix=closest(name, known)
        )


@dataclass(frozen=True)
class Known:
    """Every value in the catalog, by component; torch and Python are part of their base."""

    bases: tuple[Stack, ...]
    others: Mapping[str, frozenset[str]]

    def satisfy(self, *clauses: Clause) -> bool:
        """Return whether a known stack satisfies all clauses. Components outside of bases are independent."""
        bounds: dict[str, list[Range]] = {}
        for clause in clauses:
            for component, bound in clause.bounds.items():
                bounds.setdefault(component, []).append(bound)
        for component in bounds.keys() & self.others.keys():
            if not any(all(value in bound for bound in bounds[component]) for value in self.others[component]):
                return False
        fixed = (TORCH, PYTHON)
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
    values["sm"] = {gpu.sm for gpu in catalog.gpus}
    stated = [report.cell.versions for report in catalog.reports]
    for versions in (*stated, *(stack.versions for stack in (*contents, *provided))):
        for component, version in versions.items():
            values.setdefault(component, set()).add(version)
    for component in (MCORE, TE):
        values.setdefault(component, set()).update(release.version for release in catalog.releases(component))
    for failure in catalog.failures:
        for build in failure.build:
            values.setdefault(build.package, set()).add(build.version)
        for package in failure.package:
            values.setdefault(package.name, set()).add(package.version)
    values |= {writer: values[written] for writer, written in WRITER.items()}
    # `megatrix check` also checks torch releases that no base of the catalog has.
    alone = [Stack({TORCH: release.version}) for release in catalog.torch]
    others = {name: frozenset(known) for name, known in values.items() if name not in (BASE, TORCH, PYTHON)}
    return Known((*contents, *alone), others)


def _contradiction(failure: Failure, known: Known, where: str) -> None:
    """Raise MatrixError when a cell matches both `affected` and `works`."""
    for broken in failure.affected:
        for works in failure.works:
            same = set(broken.cases) & set(works.cases) or not (broken.cases or works.cases)
            if same and known.satisfy(broken, works):
                raise MatrixError(
                    "a cell is both in affected and in works",
                    where=where,
                    got=f"affected ({broken}) and works ({works})",
                    expected="no cell that both match",
                    fix="narrow one of the two clauses",
                )


def _unique(ids: Iterable[str], where: str) -> None:
    twice = [id for id, count in Counter(ids).items() if count > 1]
    if twice:
        raise MatrixError("an id is used twice", where=where, got=", ".join(twice), expected="each id once")
