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

from matrix.catalog.cell import EVERYTHING, Cell, Clause
from matrix.catalog.failure import LAUNCHERS, Axis, Failure, Level, Package
from matrix.catalog.folders import ENTRY
from matrix.catalog.model import Catalog
from matrix.catalog.reach import Condition
from matrix.catalog.versions import NONE, is_version
from matrix.errors import MatrixError, closest

MOST_RANKS: Final = 1024  # ranks, GPUs of a case: 16 are the most that a case has, on one machine
MOST_S: Final = 86_400  # seconds of a case's deadline; the longest case takes minutes
WRITERS: Final = {Axis.WRITER_MCORE, Axis.WRITER_TE}
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
        if bool(case.write) != bool(WRITERS & set(failure.axes)):
            raise MatrixError(
                "a checkpoint needs a writer and an axis of it", where=f"{where}: case {case.name}.write",
                got=f"write {case.write!r}, axes {[axis.value for axis in failure.axes]}",
                expected="a function that writes the checkpoint, and writer_mcore or writer_te among the axes; or none",
            )  # fmt: skip
    running = {level for case in failure.case for level in case.levels} - {Level.CONTRACT}
    if running and Axis.BASE not in failure.axes:
        raise MatrixError(
            "cases that run need the axis base",
            where=f"{where}: axes",
            got=f"axes {[axis.value for axis in failure.axes]}, levels {sorted(level.value for level in running)}",
            expected='"base" among the axes, or cases at level contract alone',
        )
    for place, named in enumerate(failure.package):
        for pin in named.requires:
            _pinned(pin, f"{where}: package[{place}].requires")
    ids = [one.id for one in catalog.failures]
    engines = [release.version for release in catalog.transformer_engine]
    for masked in failure.masked:
        _known(masked.by, ids, "failure", f"{where}: masked.by")
        for name in masked.cases:
            _known(name, [one.name for one in failure.case], "case", f"{where}: masked.cases")
    for place, stack in enumerate(failure.stack):
        _known(stack.cell.base, catalog.bases, "base", f"{where}: stack[{place}].cell.base")
    for name in failure.night.bases if failure.night else ():
        _known(name, catalog.bases, "base", f"{where}: night.bases")
    for engine in failure.night.te if failure.night else ():
        _known(engine, engines, "release of Transformer Engine", f"{where}: night.te")
    cores = [release.version for release in catalog.megatron_core]
    for core in failure.night.mcore if failure.night else ():
        _known(core, cores, "release of megatron-core", f"{where}: night.mcore")
    for place, pick in enumerate(failure.pick):
        _known(pick.base, catalog.bases, "base", f"{where}: pick[{place}].base")
        _known(
            pick.mcore, [NONE, *cores, *failure.builds(Package.MCORE)], "megatron-core", f"{where}: pick[{place}].mcore"
        )
        _known(
            pick.te, [NONE, *engines, *failure.builds(Package.TE)], "Transformer Engine", f"{where}: pick[{place}].te"
        )
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
    """Every value in the catalog, by axis; torch and Python are part of their base."""

    bases: tuple[Cell, ...]
    others: Mapping[str, frozenset[str]]

    def satisfy(self, *clauses: Clause) -> bool:
        """Return whether a known cell satisfies all clauses. Axes other than the base are independent of each other."""
        bounds = [bound for clause in clauses for bound in clause.bounds()]
        if not all(
            any(all(value in bound for at, bound in bounds if at == axis) for value in values)
            for axis, values in self.others.items()
            if any(at == axis for at, _ in bounds)
        ):
            return False
        on_base = [Clause(base=clause.base, torch=clause.torch, python=clause.python) for clause in clauses]
        return any(all(clause.matches(cell) for clause in on_base) for cell in self.bases)


def known(catalog: Catalog) -> Known:
    """Return the known values: of releases, builds, the stacks of reports, images, GPUs and driver branches."""
    stacks = [stack.cell for stack in catalog.stacks]
    builds = [build for failure in catalog.failures for build in failure.build]
    named = {
        axis: {getattr(cell, axis) for cell in stacks} - {None} for axis in ("mcore", "te", "driver", "sm", "gpus")
    }
    named["mcore"] |= {release.version for release in catalog.megatron_core}
    named["te"] |= {release.version for release in catalog.transformer_engine}
    named["te"] |= {image.te for image in catalog.containers if image.te}
    named["mcore"] |= {build.version for build in builds if build.package is Package.MCORE}
    named["te"] |= {build.version for build in builds if build.package is Package.TE}
    named["driver"] |= {driver.branch for driver in catalog.drivers}
    named["sm"] |= {gpu.sm for gpu in catalog.gpus}
    named |= {"writer_mcore": named["mcore"], "writer_te": named["te"]}
    provided = {pin for base in catalog.wheels for python in base.pythons for pin in base.provided(python)}
    open_ = {f"{one.name}=={one.version}" for failure in catalog.failures for one in failure.package}
    for pin in provided | open_:
        name, _, version = pin.partition("==")
        named.setdefault(name, set()).add(version)
    # `megatrix check` also checks torch releases that no base of the catalog has.
    bases = tuple(catalog.cell(base) for base in catalog.bases)
    alone = tuple(Cell("", release.version, NONE) for release in catalog.torch)
    return Known(bases + alone, {axis: frozenset(values) for axis, values in named.items()})


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
