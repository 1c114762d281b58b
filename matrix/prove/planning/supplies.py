"""The cases of a bundle, and what a machine without a network needs for them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from matrix.ground.cases.cells import CLONE
from matrix.ground.cases.machine_requirements import BaseOffer, builds_te, offered
from matrix.ground.catalog.distributions import Toolkit
from matrix.ground.catalog.failure import CaseNeed, Level
from matrix.ground.catalog.model import HOST, Catalog, Wheels
from matrix.ground.catalog.stack import MCORE, TE
from matrix.ground.catalog.versions import parse
from matrix.ground.errors import MatrixError, closest
from matrix.ground.verdicts.planned import Planned
from matrix.prove.planning import covering
from matrix.prove.planning.case_request import with_host
from matrix.prove.planning.night import ANY_LINE, night, of_base
from matrix.prove.planning.selection import select, select_possible, without_exclusions


@dataclass(frozen=True)
class Supplies:
    """What cases need besides their base. `releases` are (package, version) to lay over it, `clones` names of clones.

    `builds` are the releases of Transformer Engine whose extension is built on the machine.
    """

    releases: tuple[tuple[str, str], ...]
    clones: tuple[str, ...]
    builds: tuple[str, ...]


def checked_base(catalog: Catalog, base: str, python: str) -> Wheels | None:
    """Return the base of wheels, None for `host`. Raises MatrixError for another base, or a Python that it lacks."""
    bases = {str(wheels.id): wheels for wheels in catalog.wheels}
    if base not in (HOST, *bases):
        raise MatrixError(
            "no such --base",
            got=f"{base}, an image: `podman save` copies it" if catalog.find_base(base) else base,
            expected=f"{HOST} or a base of wheels",
            fix=closest(base, [HOST, *bases]),
        )
    entries = catalog.standard if base == HOST else [bases[base]]
    minors = [*dict.fromkeys(minor for entry in entries for minor in (*entry.pythons, *entry.fallbacks))]
    if python not in minors:
        raise MatrixError(
            f"no wheels for this --python on {base}",
            got=python,
            expected=" or ".join(minors),
            fix=f"--python {minors[0]}, the Python that the machine of the bundle must have",
        )
    return bases.get(base)


def bundled_cases(catalog: Catalog, base: str, python: str, level: Level, expression: str) -> list[Planned]:
    """Return the cases for which a bundle is made; `expression` "" is the night of the base. Raises MatrixError.

    The packages of a `host` are unknown here: its cases are those on any torch that has wheels for this Python, with
    any Transformer Engine.
    """
    if base == HOST:
        cases: dict[str, Planned] = {}
        for entry in (entry for entry in catalog.standard if python in (*entry.pythons, *entry.fallbacks)):
            on_host = with_host(without_exclusions(catalog), {"torch": str(entry.torch)}, python)
            cases |= {item.key: item for item in of_base(on_host, HOST, (level,), te_line=ANY_LINE)}
        return select([*cases.values()], expression) if expression else [*cases.values()]
    if expression:
        return select_possible(catalog, (level,), selection(base, expression))
    cases_of_night = night(catalog, covering.pairwise, (level,))
    if not any(item.cell.base == base for item in cases_of_night):
        bases = {str(item.cell.base) for item in cases_of_night} & {str(entry.id) for entry in catalog.wheels}
        raise MatrixError(
            f"the night has no case of level {level.value} on this base",
            got=base,
            expected=" or ".join(sorted(bases)) or "--select",
            fix='--select names cases that are in no night, such as --select "mcore==0.16.*"',
        )
    return select(cases_of_night, selection(base))


def selection(base: str, expression: str = "") -> str:
    """Return the expression for the cases of a base."""
    return f"base=={base} and ({expression})" if expression else f"base=={base}"


def supplies(catalog: Catalog, cases: Iterable[Planned]) -> Supplies:
    """Return what these cases, and those that write their checkpoints, need besides their base.

    A host has the Transformer Engine of its cases; that of another writer is built there, as in a base of wheels.
    """
    releases, clones, builds = set[tuple[str, str]](), set[str](), set[str]()
    for item in cases:
        offer = offered(catalog, item.cell.base)
        if item.cell.base == HOST:
            offer = BaseOffer(HOST, te=item.cell.stack.version(TE), measured=True, toolkit=Toolkit())
        for part in filter(None, (item, item.writer)):
            releases |= {(name, version) for name, _, version in (text.partition("==") for text in part.packages)}
            if CaseNeed.MEGATRON_LM in catalog.failure(part.failure).case_named(part.case).needs:
                clones.add(CLONE[MCORE])
            for package, source in ((MCORE, part.source), (TE, part.te_source)):
                version, clone = part.cell.stack.version(package), source.partition("@")[0]
                if version is None or (package == TE and version == offer.te):
                    continue
                if clone in CLONE.values():
                    clones.add(clone)
                elif package == TE and builds_te(part, offer):
                    builds.add(version)
                else:
                    releases.add((package, version))
    return Supplies(tuple(sorted(releases)), tuple(sorted(clones)), tuple(sorted(builds, key=parse)))
