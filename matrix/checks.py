"""What must hold in the catalog as a whole, beyond the type of each key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from matrix.cell import Cell
from matrix.errors import MatrixError, closest
from matrix.failure import Package
from matrix.versions import NONE

if TYPE_CHECKING:
    from matrix.catalog import Catalog
    from matrix.failure import Failure


def check(catalog: Catalog, folder: Path) -> None:
    """Raise MatrixError for an id used twice, a reference without a target, or a rule that matches no known cell."""
    wheels, images = [base.id for base in catalog.wheels], [image.id for image in catalog.containers]
    _unique([*wheels, *images], f"{folder}: bases.toml, containers.toml")
    _unique((failure.id for failure in catalog.failures), f"{folder / 'failures'}")
    for name in ("megatron_core", "transformer_engine", "torch"):
        _unique((item.version for item in getattr(catalog, name)), f"{folder / 'releases.toml'}: {name}")
    cells = known_cells(catalog)
    for failure in catalog.failures:
        _check_failure(failure, catalog, cells, f"{folder / 'failures' / failure.id}.toml")
    for place, exclusion in enumerate(catalog.exclusions):
        if not any(exclusion.when.matches(cell) for cell in cells):
            raise MatrixError(
                "this exclusion matches no known cell",
                where=f"{folder / 'constraints.toml'}: exclude[{place}].when",
                got=exclusion.when,
                expected="at least one cell that it keeps out",
                fix="delete it, or correct the bounds",
            )
    ids = [failure.id for failure in catalog.failures]
    for place, stack in enumerate(catalog.stacks):
        _known(stack.failure, ids, "failure", f"{folder / 'stacks.toml'}: stack[{place}].failure")
        _known(stack.cell.base, catalog.bases, "base", f"{folder / 'stacks.toml'}: stack[{place}].cell.base")


def _check_failure(failure: Failure, catalog: Catalog, cells: Sequence[Cell], where: str) -> None:
    _unique((case.name for case in failure.case), f"{where}: case")
    _unique((signature.name for signature in failure.signature), f"{where}: signature")
    for signature in failure.signature:
        if not any((signature.exception, signature.message, signature.signal, signature.exit_code, signature.log)):
            raise MatrixError(
                "a signature that would match any failure",
                where=f"{where}: signature {signature.name}",
                expected="exception, message, signal, exit_code or log",
            )
    ids = [one.id for one in catalog.failures]
    engines = [release.version for release in catalog.transformer_engine]
    for masked in failure.masked:
        _known(masked.by, ids, "failure", f"{where}: masked.by")
    for name in failure.night.bases if failure.night else ():
        _known(name, catalog.bases, "base", f"{where}: night.bases")
    for engine in failure.night.te if failure.night else ():
        _known(engine, engines, "release of Transformer Engine", f"{where}: night.te")
    for kind in ("affected", "works"):
        for place, clause in enumerate(getattr(failure, kind)):
            for base in clause.base:
                _known(base, catalog.bases, "base", f"{where}: {kind}[{place}].base")
            if not any(clause.matches(cell) for cell in cells):
                raise MatrixError(
                    "this predicate matches no known cell",
                    where=f"{where}: {kind}[{place}]",
                    got=clause,
                    expected="at least one base x megatron-core x TE of the catalog",
                    fix="check the bounds against releases.toml and bases.toml, or add what is missing there",
                )
    _contradiction(failure, cells, where)


def _known(name: str, known: Iterable[str], what: str, where: str) -> None:
    """Raise MatrixError with a suggestion unless `name` is one of `known`."""
    if name not in known:
        raise MatrixError(
            f"no such {what}", where=where, got=name, expected=f"a {what} of the catalog", fix=closest(name, known)
        )


def known_cells(catalog: Catalog) -> list[Cell]:
    """Return a cell for every base x megatron-core x TE that the catalog names, stacks of reports included."""
    cores = [release.version for release in catalog.megatron_core] + [stack.cell.mcore for stack in catalog.stacks]
    builds = [build for failure in catalog.failures for build in failure.build]
    cores += [build.version for build in builds if build.package is Package.MCORE]
    engines = [NONE, *(release.version for release in catalog.transformer_engine)]
    engines += [stack.cell.te for stack in catalog.stacks if stack.cell.te]
    engines += [image.te for image in catalog.containers if image.te]
    engines += [build.version for build in builds if build.package is Package.TE]
    drivers = [driver.branch for driver in catalog.drivers]
    cells = [catalog.cell(base, mcore=core) for base in catalog.bases for core in dict.fromkeys(cores)]
    cells += [
        Cell("", NONE, core, engine, driver)
        for core in dict.fromkeys(cores)
        for engine in dict.fromkeys(engines)
        for driver in (NONE, *drivers[:1])
    ]
    return cells


def _contradiction(failure: Failure, cells: Iterable[Cell], where: str) -> None:
    """Raise MatrixError when a cell is said to be broken and to work."""
    for cell in cells:
        broken = [clause for clause in failure.affected if clause.matches(cell)]
        works = [clause for clause in failure.works if clause.matches(cell)]
        if broken and works:
            raise MatrixError(
                "a cell is both in affected and in works",
                where=where,
                got=f"{cell.id}: affected ({broken[0]}) and works ({works[0]})",
                expected="one of them",
                fix="narrow one of the two clauses",
            )


def _unique(ids: Iterable[str], where: str) -> None:
    twice = [id for id, count in Counter(ids).items() if count > 1]
    if twice:
        raise MatrixError("an id is used twice", where=where, got=", ".join(twice), expected="each id once")
