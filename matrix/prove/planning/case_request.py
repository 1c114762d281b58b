"""The cases that a command requests, also those of the base `host`, the current environment, and those of a bundle.

Pure: sources are read and the environment is looked up by functions passed in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from operator import ne
from typing import Final

from matrix.ground.cases.cells import CLONE, excluded
from matrix.ground.cases.machine_requirements import BaseOffer, builds_te, offered
from matrix.ground.catalog.distributions import OF_HOST, nccl_sharing
from matrix.ground.catalog.failure import CaseNeed, Expectation, Level
from matrix.ground.catalog.machine import Toolkit
from matrix.ground.catalog.model import HOST, Catalog, ReaderBase, Wheels
from matrix.ground.catalog.schema import Identifier, VersionText
from matrix.ground.catalog.stack import MCORE, TE, WRITER_MCORE
from matrix.ground.catalog.versions import NONE, parse
from matrix.ground.errors import MatrixError, closest
from matrix.ground.verdicts.planned import Planned
from matrix.prove.planning import catalog_lines
from matrix.prove.planning import night as plan
from matrix.prove.planning.night import ANY_LINE, night, of_base, pairwise
from matrix.prove.planning.selection import (
    Test,
    exclusions,
    may_have,
    parts_of,
    possible_cases,
    select,
    select_keywords,
    select_possible,
    without_exclusions,
)


def with_host(
    catalog: Catalog, packages: Mapping[str, str], python: str, label: str = "", *, id: str = HOST, program: str = ""
) -> Catalog:
    """Return the catalog with the base `host`: `packages` (name -> version) on a minor of Python ("3.10").

    With the torch of a container, it stands in that container; `label` is the value of LABEL, if any. Without torch,
    the base only reads sources (level contract). Another environment than that of this process has an `id` of its own,
    and its Python, `program`.
    """
    host, pythons = Identifier(id), (python,)
    if torch := packages.get("torch"):
        image = catalog.container_of(torch, label)
        stands_in = image.id if image else NONE
        open_ = dict.fromkeys(name for failure in catalog.failures for name in failure.open)
        requires = tuple(f"{name}=={packages[name]}" for name in open_ if name in packages)
        base = Wheels(
            host, VersionText(torch), pythons, image=stands_in, requires=requires, variant=HOST, program=program
        )
        return replace(catalog, wheels=(*catalog.wheels, base))
    return replace(catalog, readers=(*catalog.readers, ReaderBase(host, pythons)))


def cases_here(
    catalog: Catalog, base: str, packages: Mapping[str, str], levels: Collection[Level], compiled: Collection[str] = ()
) -> list[Planned]:
    """Return the cases that an environment with these packages runs as `base`. Raises MatrixError without any.

    `compiled` are the releases of Transformer Engine that a bundle has for its torch.
    """
    core, engine = map(packages.get, ("megatron-core", "transformer-engine"))
    reader = base
    if base == HOST and isinstance(catalog.base(base), ReaderBase):
        reader = catalog.readers[0].id  # failures name the reader of the catalog
        levels = [level for level in levels if level is Level.CONTRACT]
    cases = of_base(catalog, reader, levels, core=core, engine=engine, compiled=compiled)
    cases = [replace(item, cell=replace(item.cell, base=Identifier(base))) for item in cases]
    if not cases:
        raise MatrixError(
            "the catalog has no case for this environment",
            got=f"base {base}, megatron-core {core or 'any'}",
            expected="a base and a release that a reproduction is written for",
        )
    return cases


OPTIONS: Final = {"source": "--mcore", "te_source": "--te", "writer_source": "--writer"}  # of each source of a Planned


@dataclass(frozen=True)
class PackageSource:
    """A package under test: its source as text, the version that it declares, and its release if it is one on PyPI."""

    source: str
    version: str
    release: str = ""


@dataclass(frozen=True)
class InstalledBase:
    """The environment of this process: `packages` (name -> version), minor of Python, container label.

    `compiled` are the releases of Transformer Engine that its bundle has for its torch.
    """

    packages: Mapping[str, str]
    python: str
    label: str = ""
    compiled: tuple[str, ...] = ()


@dataclass(frozen=True)
class CaseRequest:
    """What a command requests: all of a night, or a part of the possible cases, or those of given keys or sources.

    `levels` are those that are requested or that the machine can run. `sources` are the arguments that name sources,
    by field of Planned. `here` requests the cases of the environment of this process, on this machine unless
    `on_cluster`. `smoke` requests a few cases of the night, on that many of its bases. `line` requests the
    share of a line at a desk, with `whole_line` all of it. `keywords` limits any of these to the cases that match it.
    """

    levels: tuple[Level, ...]
    select: str = ""
    within: str = ""
    keys: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    compiled: bool = False
    expect: Expectation | None = None
    here: bool = False
    on_cluster: bool = False
    smoke: int = 0
    line: str = ""
    whole_line: bool = False
    keywords: str = ""


Inspect = Callable[[str, str], PackageSource]  # of a field of Planned and the argument that names its source


def requested_levels(named: Iterable[str], *, on_cluster: bool, has_gpu: bool) -> tuple[Level, ...]:
    """Return the named levels, or those that the machine can run; on a cluster the scheduler decides by case."""
    if levels := tuple(map(Level, named)):
        return levels
    return tuple(level for level in Level if on_cluster or has_gpu or level is not Level.GPU)


def requested_cases(
    catalog: Catalog, request: CaseRequest, inspect: Inspect, installed: Callable[[], InstalledBase]
) -> tuple[list[Planned], str]:
    """Return the requested cases, and a label for their run. Raises MatrixError."""
    cases, label = _requested(catalog, request, inspect, installed)
    return (select_keywords(cases, request.keywords) if request.keywords else cases), label


def _requested(
    catalog: Catalog, request: CaseRequest, inspect: Inspect, installed: Callable[[], InstalledBase]
) -> tuple[list[Planned], str]:
    if request.line:
        return cases_of_line(catalog, request), request.line
    if request.whole_line:
        raise MatrixError("--all is for a line", got="--all without --line", expected="--line te19 --all")
    if request.here:
        cases = cases_of_environment(catalog, request, installed)
        if request.keys:
            return of_keys(request.keys, {item.key: item for item in cases}), "case"
        everything = partial(cases_of_environment, without_exclusions(catalog), request, installed)
        excluded = partial(exclusions, catalog, everything)
        return (select(cases, request.select, excluded) if request.select else cases), "here"
    if request.keys:
        if request.sources:
            candidates = [with_sources(catalog, key, request, inspect) for key in request.keys]
        else:  # at every level: a pasted command may come from another machine
            candidates = possible_cases(catalog, tuple(Level), _near_keys(request.keys))
            candidates += filter(None, (bisected_case(catalog, key) for key in request.keys))
        return of_keys(request.keys, {item.key: item for item in candidates}, catalog), "case"
    if request.compiled or request.sources.keys() - {"source"}:
        raise MatrixError("--te, --writer and --compile are for one case", expected="--case KEY with --te or --writer")
    if request.sources and (part := _given(request, "--smoke", "--within")):
        fix = "--select in place of --within" if request.within else "leave one out"
        raise MatrixError(f"{part[0]} is a part of the night", got=f"{part[0]} with --mcore", fix=fix)
    if core := request.sources.get("source"):
        package = inspect("source", core)
        text = package.release or package.source
        cases = plan.of_source(catalog, text, package.version, _expectation(request, [package]), request.levels)
        return (select(cases, request.select) if request.select else cases), "source"
    if request.expect:
        raise MatrixError(
            "--expect requires --mcore", got=f"--expect {request.expect.value}", expected="--mcore SOURCE with it"
        )
    if request.select:
        return select_possible(catalog, request.levels, request.select), "select"
    cases = plan.night(catalog, pairwise, request.levels)
    if request.smoke:
        return plan.smoke(catalog, cases, request.smoke), "night"
    return (select(cases, request.within) if request.within else cases), "night"


def _expectation(request: CaseRequest, packages: Iterable[PackageSource]) -> Expectation | None:
    """Return the requested expectation; without one, works for a source that is no release, else the catalog's."""
    return request.expect or (None if all(package.release for package in packages) else Expectation.WORKS)


def with_sources(catalog: Catalog, key: str, request: CaseRequest, inspect: Inspect) -> Planned:
    """Return the case of a key with the requested sources. Raises MatrixError for another version."""
    packages = {name: inspect(name, text) for name, text in request.sources.items()}
    fields = {name: package.source for name, package in packages.items()}
    expectation = _expectation(request, packages.values())
    item = plan.of_key(catalog, key, fields, expectation, compiled=request.compiled)
    components = {"source": MCORE, "te_source": TE, "writer_source": WRITER_MCORE}
    for name, package in packages.items():
        version = item.cell.stack[components[name]]
        if version != package.version:
            raise MatrixError(
                "the case names another version than the source",
                where=package.source,
                got=version,
                expected=package.version,
            )
    return item


def bisected_case(catalog: Catalog, key: str) -> Planned | None:
    """Return the case of a key in a cell that bisections alone plan, None for another key.

    That is any cell for a case which depends on none (`picked`), and one with another Python or another package.
    """
    try:
        item = plan.of_key(catalog, key, {}, None)
    except MatrixError:
        return None
    failure, cell = catalog.failure(item.failure), item.cell
    own_packages = {str(package.name) for package in failure.package}
    varied = cell.base in catalog.by_python or not {*cell.packages} <= own_packages
    if not (varied or failure.case_named(item.case).picked):
        return None
    return item if excluded(catalog, failure, cell) is None else None


def cases_of_environment(
    catalog: Catalog, request: CaseRequest, installed: Callable[[], InstalledBase]
) -> list[Planned]:
    """Return the cases of the environment of this process. Raises MatrixError with an option that selects others."""
    what, expected = "--here runs the installed packages only", "--here alone, or with --select, --case or --level"
    _refuse(request, what, expected, "--within", "--smoke", "--expect", "--engine slurm", *OPTIONS.values())
    return host_cases(catalog, installed(), request.levels)[1]


def host_cases(catalog: Catalog, base: InstalledBase, levels: Collection[Level]) -> tuple[Catalog, list[Planned]]:
    """Return the catalog with an environment as the base `host`, and the cases there."""
    extended = with_host(catalog, base.packages, base.python, base.label)
    return extended, cases_here(extended, HOST, base.packages, levels, base.compiled)


def cases_of_line(catalog: Catalog, request: CaseRequest) -> list[Planned]:
    """Return the cases of a line. Raises MatrixError with an option that selects others."""
    what, expected = "--line runs the released packages of a line", "--line alone, or with --all, -k, --lf or --level"
    _refuse(request, what, expected, "--here", "--compile", "--expect", *OPTIONS.values())
    line = catalog_lines.named(catalog, request.line)
    part = catalog_lines.whole if request.whole_line else catalog_lines.share
    cases = part(catalog, line, plan.night(catalog, pairwise, request.levels), request.levels)
    if not cases:
        raise MatrixError(
            f"no failure of the catalog depends on the releases of line {line.name}",
            got=line.description,
            fix=f"--line {line.name} --all runs what its base runs without them",
        )
    return cases


def _refuse(request: CaseRequest, what: str, expected: str, *options: str) -> None:
    """Raise MatrixError for a request that was also made with one of these options; `what` begins with its own."""
    if conflicting := _given(request, *options):
        got = f"{what.partition(' ')[0]} with {conflicting[0]}"
        raise MatrixError(what, got=got, expected=expected, fix="leave one out")


def _given(request: CaseRequest, *options: str) -> list[str]:
    """Return which of these options a request was made with."""
    values = {
        "--within": request.within,
        "--smoke": request.smoke,
        "--here": request.here,
        "--compile": request.compiled,
        "--expect": request.expect,
        "--engine slurm": request.on_cluster,
        **{OPTIONS[name]: text for name, text in request.sources.items()},
    }
    return [option for option in options if values.get(option)]


def of_keys(keys: Collection[str], cases: Mapping[str, Planned], catalog: Catalog | None = None) -> list[Planned]:
    """Return the cases of these keys. Raises MatrixError; the fix suggests cases that differ in one word."""
    for key in keys:
        if key not in cases:
            words = re.split("[ /]", key)
            if catalog and len(words) > 1:
                catalog.base(words[0])
            # Fuzzy matching against all 100,000 cases of a catalog would take half a minute.
            split = ((case, re.split("[ /]", case)) for case in cases)
            near = [case for case, parts in split if len(parts) == len(words) and sum(map(ne, words, parts)) == 1]
            raise MatrixError(
                "no such case",
                got=key,
                expected="CELL FAILURE CASE LEVEL",
                fix=closest(key, near) if near else "megatrix plan --select EXPR lists cases",
            )
    if repeated := [key for key in keys if [*keys].count(key) > 1]:
        raise MatrixError("a case is named twice", got=repeated[0], fix="a run has each case once; leave one out")
    return [cases[key] for key in keys]


def _near_keys(keys: Collection[str]) -> Test:
    """Return the test of the cases that may have a key, or differ from it in one word."""
    expected_values = [
        {**parts_of(cell), **dict(zip(("failure", "case", "level"), words, strict=False))}
        for cell, *words in (key.split(" ") for key in keys)
        if len(words) == 3  # every case of the catalog differs in one word from a key of one
    ]
    return lambda values: any(may_have(expected, values, differing=1) for expected in expected_values)


@dataclass(frozen=True)
class Supplies:
    """What cases need besides their base. `releases` are (package, version) to lay over it.

    `clones` maps the names of clones to the revisions that cases read there, `builds` are the releases of Transformer
    Engine whose extension is built on the machine.
    """

    releases: tuple[tuple[str, str], ...]
    clones: Mapping[str, tuple[str, ...]]
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
    cases_of_night = night(catalog, pairwise, (level,))
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


def supplies(catalog: Catalog, cases: Iterable[Planned], *, compiled: bool = False) -> Supplies:
    """Return what these cases, and those that write their checkpoints, need besides their base.

    A host has the Transformer Engine of its cases, unless the bundle has it, `compiled`; that of another writer is
    built there, as in a base of wheels. Ranks that share its GPU load an NCCL of the major version of its CUDA, which
    is not known here.
    """
    releases, builds = set[tuple[str, str]](), set[str]()
    clones: dict[str, set[str]] = {}
    for item in cases:
        offer = offered(catalog, item.cell.base)
        if item.cell.base == HOST:
            te = NONE if compiled else item.cell.stack.version(TE)
            offer = BaseOffer(HOST, te=te, measured=True, toolkit=Toolkit())
            releases.update(OF_HOST)
        if item.level is Level.GPU and item.ranks > 1 and offer.toolkit:
            releases |= {(wheel.package, wheel.version) for wheel in nccl_sharing().wheel}
        for part in filter(None, (item, item.writer)):
            releases |= {(name, version) for name, _, version in (text.partition("==") for text in part.packages)}
            if CaseNeed.MEGATRON_LM in catalog.failure(part.failure).case_named(part.case).needs:
                clones.setdefault(CLONE[MCORE], set()).add(f"core_v{part.cell.stack.version(MCORE)}")
            for package, source in ((MCORE, part.source), (TE, part.te_source)):
                version, (clone, _, revision) = part.cell.stack.version(package), source.partition("@")
                if version is None or (package == TE and version == offer.te):
                    continue
                if clone in CLONE.values():
                    clones.setdefault(clone, set()).add(revision)
                elif package == TE and builds_te(part, offer):
                    builds.add(version)
                else:
                    releases.add((package, version))
    read = {clone: tuple(sorted(revisions)) for clone, revisions in sorted(clones.items())}
    return Supplies(tuple(sorted(releases)), read, tuple(sorted(builds, key=parse)))
