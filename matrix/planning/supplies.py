"""The cases of a bundle, and what a machine without a network needs for them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from matrix.catalog.failure import CaseNeed, Level
from matrix.catalog.model import HOST, Catalog, Wheels
from matrix.catalog.stack import MCORE, TE
from matrix.catalog.te_builds import te_builds
from matrix.errors import MatrixError, closest
from matrix.planning import covering
from matrix.planning.cases import CLONE
from matrix.planning.host_cases import with_host
from matrix.planning.night import night, of_base
from matrix.planning.selection import select, select_possible, without_exclusions
from matrix.verdicts.planned import Planned


@dataclass(frozen=True)
class Supplies:
    """What cases need besides their base. `releases` are (package, version) to lay over it, `clones` names of clones.

    `sources` are pins ("NAME==VERSION") of what is built on the machine: of each the source distribution.
    """

    releases: tuple[tuple[str, str], ...]
    clones: tuple[str, ...]
    sources: tuple[str, ...]


def checked_base(catalog: Catalog, base: str, python: str) -> Wheels | None:
    """Return the base of wheels, None for `host`. Raises MatrixError for another base, or a Python that it lacks."""
    if base == HOST:
        minors = tuple(sorted({python for entry in catalog.standard for python in (*entry.pythons, *entry.fallbacks)}))
        entry = None
    else:
        bases = {str(wheels.id): wheels for wheels in catalog.wheels}
        if base not in bases:
            got = f"{base}, an image: `podman save` copies it" if catalog.find_base(base) else base
            fix = closest(base, [HOST, *bases])
            raise MatrixError("no such --base", got=got, expected=f"{HOST} or a base of wheels", fix=fix)
        entry = bases[base]
        minors = (*entry.pythons, *entry.fallbacks)
    if python not in minors:
        raise MatrixError(
            f"no wheels for this --python on {base}",
            got=python,
            expected=" or ".join(minors),
            fix=f"--python {minors[0]}, the Python that the machine of the bundle must have",
        )
    return entry


def bundled_cases(catalog: Catalog, base: str, python: str, level: Level, expression: str) -> list[Planned]:
    """Return the cases for which a bundle is made; `expression` "" is the night of the base. Raises MatrixError.

    The packages of a `host` are unknown here: its cases are those on any torch that has wheels for this Python.
    """
    if base == HOST:
        torches = [entry.torch for entry in catalog.standard if python in (*entry.pythons, *entry.fallbacks)]
        cases: dict[str, Planned] = {}
        for torch in torches:
            packages = {"torch": str(torch)}
            on_host = with_host(without_exclusions(catalog), packages, python)
            cases |= {item.key: item for item in of_base(on_host, HOST, (level,))}
        return select([*cases.values()], expression) if expression else [*cases.values()]
    if expression:
        return select_possible(catalog, (level,), selection(base, expression))
    cases_of_night = night(catalog, covering.pairwise, (level,))
    if not any(item.cell.base == base for item in cases_of_night):
        bases = sorted({str(item.cell.base) for item in cases_of_night} & {str(entry.id) for entry in catalog.wheels})
        raise MatrixError(
            f"the night has no case of level {level.value} on this base",
            got=base,
            expected=" or ".join(bases) or "--select",
            fix='--select names cases that are in no night, such as --select "mcore==0.16.*"',
        )
    return select(cases_of_night, selection(base))


def selection(base: str, expression: str = "") -> str:
    """Return the expression for the cases of a base."""
    return f"base=={base} and ({expression})" if expression else f"base=={base}"


def supplies(catalog: Catalog, cases: Iterable[Planned]) -> Supplies:
    """Return what these cases, and those that write their checkpoints, need besides their base."""
    releases, clones, sources = set[tuple[str, str]](), set[str](), set[str]()
    for part in (part for item in cases for part in (item, item.writer) if part):
        releases |= {(name, version) for name, _, version in (text.partition("==") for text in part.packages)}
        if CaseNeed.MEGATRON_LM in catalog.failure(part.failure).case_named(part.case).needs:
            clones.add(CLONE[MCORE])
        for package, source in ((MCORE, part.source), (TE, part.te_source)):
            version = part.cell.stack[package]
            clone = source.partition("@")[0]
            if clone in CLONE.values():
                clones.add(clone)
            elif isinstance(version, str):
                releases.add((package, str(version)))
                if package == TE and part.level is Level.GPU:
                    sources.add(f"{te_builds().extension.package}=={version}")
    return Supplies(tuple(sorted(releases)), tuple(sorted(clones)), tuple(sorted(sources)))
