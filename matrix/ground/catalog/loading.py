"""Reading the catalog: the tables of matrix/ground/catalog/facts and the folders of failures, checked as a whole.

The decoded catalog in one file of the cache, for the next command: reading and checking 100 entries takes 0.07 s.

The file is a pickle of which the classes of the catalog alone are read. One of another user, of other contents, or that
is damaged counts as none.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

from matrix import PACKAGE
from matrix.ground.catalog.codec import decode
from matrix.ground.catalog.failure import Case, Failure, Level, StandIn
from matrix.ground.catalog.folders import default_root, entries, folder_name, roots
from matrix.ground.catalog.model import (
    Catalog,
    Container,
    Driver,
    Exclusion,
    GpuModel,
    Image,
    JobUse,
    ReaderBase,
    Release,
    RequiredModule,
    Topic,
    Wheels,
)
from matrix.ground.catalog.reach import PreflightOptions
from matrix.ground.catalog.regular_file import LARGEST, UnreadableError, open_regular, read_regular
from matrix.ground.catalog.schema import Identifier, read_toml, toml_table
from matrix.ground.catalog.stack import BASE, MCORE, TE, known_component
from matrix.ground.catalog.versions import PARTS, SIDES, ReleaseBoundary, parse
from matrix.ground.errors import MatrixError, closest, counted

DIGEST: Final = hashlib.sha256
SIZE: Final = DIGEST().digest_size
KEPT: Final = 8  # snapshots: of as many checkouts, versions and sets of folders
SUFFIX: Final = ".catalog"
_CODE: Final = Path(__file__).parent  # what decodes and checks


def digest_of(paths: Iterable[Path]) -> bytes:
    """Return the digest of files with their paths, of the code that decodes them, and of Python.

    Raises UnreadableError.
    """
    digest = DIGEST(f"{sys.version} {sys.platform}".encode())
    for path in (*sorted(_CODE.glob("*.py")), *paths):
        content = read_regular(path)
        digest.update(f"\0{path}\0{len(content)}\0".encode("utf-8", "surrogateescape"))
        digest.update(content)
    return digest.digest()


def name_of(*folders: Path) -> str:
    """Return the name of the snapshot of a catalog that has these folders."""
    return DIGEST("\0".join(map(str, folders)).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def read_snapshot(path: Path, kind: type[T], digest: bytes) -> T | None:
    """Return what `write_snapshot` wrote for these contents, None where there is no such file."""
    try:
        with open_regular(path, largest=LARGEST) as file:
            if os.fstat(file.fileno()).st_uid != os.geteuid():
                return None
            content = file.read()
        state = content[2 * SIZE :]
        whole = content[: 2 * SIZE] == digest + DIGEST(state).digest()
        value = _Unpickler(io.BytesIO(state)).load() if whole else None
        return value if isinstance(value, kind) else None
    except (UnreadableError, OSError, pickle.UnpicklingError, ValueError, TypeError, LookupError, EOFError):
        return None


class _Unpickler(pickle.Unpickler):
    """Makes values of the catalog's classes and paths; any other name is refused before it is imported."""

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("matrix.ground.catalog.") or (module.startswith("pathlib") and name == "PosixPath"):
            with suppress(ImportError, AttributeError):  # no such module, or no such name there
                found = super().find_class(module, name)
                if isinstance(found, type) and found.__module__ == module:
                    return found
        raise pickle.UnpicklingError(f"{module}.{name} is no class of the catalog")


class _Pickler(pickle.Pickler):
    """Writes a member of an Enum as its class and value: Python 3.11.0 - 3.11.4 name `getattr`, which is refused."""

    def reducer_override(self, value: Any) -> Any:
        return (type(value), (value.value,)) if isinstance(value, Enum) else NotImplemented


def write_snapshot(path: Path, value: Any, digest: bytes) -> None:
    """Keep a value for these contents; do nothing where the folder can't be written.

    The file is renamed when it is whole. Of the others in the folder the newest stay.
    """
    with suppress(OSError, MatrixError):
        _Pickler(state := io.BytesIO(), pickle.HIGHEST_PROTOCOL).dump(value)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
        try:
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(digest + DIGEST(state.getbuffer()).digest() + state.getbuffer())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        snapshots = sorted(path.parent.glob(f"*{SUFFIX}"), key=lambda kept: -kept.stat().st_mtime)
        for old in snapshots[KEPT:]:
            old.unlink(missing_ok=True)


FACTS: Final = Path(__file__).parent / "facts"
SHARED: Final = PACKAGE / "kit" / "shared.toml"
TODO: Final = "TODO"  # in the failure.toml of a draft: a word that its author replaces
_DRAFT: Final = re.compile(rf"\b{TODO}\b".encode())
GPU_FILE: Final = "gpu.toml"  # of a failure's folder: its cases that ran on a GPU, from reports/measurements
NIGHT_FILE: Final = "night.toml"  # of a failure's folder, written by `megatrix catalog keep`
T = TypeVar("T")
READ: Final = "contract"  # name of the case at level contract that an entry with a call has


@dataclass(frozen=True)
class Common:
    """The packages of a wheels base besides torch, as pip requirements; a base may have its own list."""

    requires: tuple[str, ...]


@dataclass(frozen=True)
class Shared:
    """Stand-ins and limits that several failures use (matrix/kit/shared.toml); limits are kept as TOML texts."""

    stand_in: Mapping[str, StandIn]
    limits: Mapping[str, Mapping[str, str]]


def load(facts: Path = FACTS, *failures: Path, read: tuple[Failure, ...] | None = None) -> Catalog:
    """Read and check the catalog, with the failures in these folders (default: the project's and the site's).

    With `read` they are these. The project's own tables with all failures are kept in the cache, by their content.

    Raises MatrixError with file, key, got, expected and fix.
    """
    if (facts, failures, read) != (FACTS, (), None):
        return _read(facts, failures, read)
    return kept(Catalog, name_of(FACTS, *roots()), _sources, lambda: _read(facts, failures, read))


def _sources() -> list[Path]:
    return [*sorted(FACTS.glob("*.toml")), SHARED, *(path for root in roots() for path in entries(root))]


def kept(kind: type[T], name: str, sources: Callable[[], list[Path]], read: Callable[[], T]) -> T:
    """Return what `read` makes of the sources, from the cache where it is of their contents."""
    try:
        path, digest = default_root() / "catalogs" / f"{name}{SUFFIX}", digest_of(sources())
    except RuntimeError:  # no home
        return read()
    value = read_snapshot(path, kind, digest)
    if value is None:
        value = read()
        if digest == digest_of(sources()):  # no file changed meanwhile
            write_snapshot(path, value, digest)
    return value


def _read(facts: Path, failures: tuple[Path, ...], read: tuple[Failure, ...] | None) -> Catalog:
    from matrix.ground.catalog.checks import check  # 5 ms: a kept catalog was checked

    if not (facts / "bases.toml").is_file():
        raise MatrixError("not a catalog", got=facts, expected="a folder with bases.toml, releases.toml, ...")
    containers = _tables(facts / "containers.toml", {"container": Container})["container"]
    bases = read_toml(facts / "bases.toml")
    common = decode(Common, bases.pop("common", {}), f"{facts / 'bases.toml'}: common")
    bases_by_kind = _built(facts / "bases.toml", bases, {"wheels": Wheels, "reader": ReaderBase, "image": Image})
    drivers = _tables(facts / "drivers.toml", {"driver": Driver, "gpu": GpuModel})
    releases = _tables(
        facts / "releases.toml", {"megatron_core": Release, "transformer_engine": Release, "torch": Release}
    )
    constraints = _tables(facts / "constraints.toml", {"exclude": Exclusion, "module": RequiredModule})
    catalog = Catalog(
        containers=containers,
        wheels=tuple(replace(base, requires=base.requires or common.requires) for base in bases_by_kind["wheels"]),
        readers=bases_by_kind["reader"],
        drivers=drivers["driver"],
        gpus=drivers["gpu"],
        images=bases_by_kind["image"],
        **{name: tuple(sorted(group, key=lambda item: parse(item.version))) for name, group in releases.items()},
        exclusions=constraints["exclude"],
        modules=constraints["module"],
        topics=_tables(facts / "topics.toml", {"topic": Topic})["topic"],
        uses=_tables(facts / "uses.toml", {"use": JobUse})["use"],
        failures=read_failures(*failures) if read is None else read,
    )
    check(catalog, facts)
    return catalog


def read_failures(*folders: Path) -> tuple[Failure, ...]:
    """Return the failures in these folders (default: the project's and the site's), by id, without drafts.

    Raises MatrixError.
    """
    shared = read_regular(SHARED)
    contents = [(path, read_regular(path)) for root in folders or roots() for path in entries(root)]
    failures = [_failure_in(path, content, shared) for path, content in contents if not _DRAFT.search(content)]
    return tuple(sorted(failures, key=lambda failure: failure.id))


@cache
def _failure_in(path: Path, content: bytes, shared: bytes) -> Failure:
    """Return the failure of an entry, by content: a fork of this process decodes only what has changed."""
    return failure_of(toml_table(content, str(path)), path, _shared(shared))


@cache
def _shared(content: bytes) -> Shared:
    return decode(Shared, toml_table(content, str(SHARED)), str(SHARED))


def drafts(*folders: Path) -> dict[str, Path]:
    """Return the failure.toml of each draft in these folders, by id: one in which a TODO is left."""
    paths = (path for root in folders or roots() for path in entries(root))
    return {path.parent.name.replace("_", "-"): path for path in paths if is_draft(path)}


def is_draft(path: Path) -> bool:
    """Return whether a TODO is left in a failure.toml: no command but `catalog` reads it then."""
    return _DRAFT.search(read_regular(path)) is not None


def read_shared() -> Shared:
    """Return the stand-ins and limits that several failures use. Raises MatrixError."""
    return _shared(read_regular(SHARED))


def failure_of(entry: Mapping[str, Any], path: Path, shared: Shared) -> Failure:
    """Return the failure of an entry, the content of the failure.toml at `path`, which need not exist.

    Raises MatrixError.
    """
    content = _bounded(entry, str(path))
    content["case"] = [case for item in _items(content, "case", path) for case in _cases(item, shared, str(path))]
    names = decode(tuple[str, ...], content.pop("stand_ins", []), f"{path}: stand_ins")
    failure = decode(Failure, {**content, "axes": _axes(content, str(path))}, str(path))
    if folder_name(failure.id) != path.parent.name:
        raise MatrixError(
            "a failure's folder is named like its id, with _ for -",
            where=f"{path}: id",
            got=failure.id,
            expected=f"an id for the folder {path.parent.name}",
        )
    stand_ins = tuple(_named(name, shared.stand_in, "stand-in", f"{path}: stand_ins") for name in names)
    case = failure.case
    if failure.contract and all(Level.CONTRACT not in one.levels for one in case):
        case = (*case, Case(Identifier(READ), (Level.CONTRACT,)))
    return replace(failure, stand_in=(*stand_ins, *failure.stand_in), case=case, folder=path.parent)


def _bounded(entry: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return an entry with the releases of its [boundary] for the words of PARTS, and for SIDES in its night."""
    content = {**entry}
    boundaries = decode(dict[str, ReleaseBoundary], content.pop("boundary", {}), f"{where}: boundary")

    def resolved(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: resolved(item, name) for name, item in value.items()}
        if isinstance(value, list):
            return [resolved(item) for item in value]
        if key in boundaries and value in PARTS:
            return boundaries[key].range_of(value, f"{where}: {key}")
        if key == "text" and isinstance(value, str):
            for name, boundary in boundaries.items():
                value = value.replace(f"{{{name}.fixed}}", boundary.fixed)
        return value

    tables = ("affected", "works", "reached_by", "case", "workaround")
    night = content.get("night")
    for name, boundary in boundaries.items():
        if isinstance(night, dict) and night.get(name) == SIDES:
            rules = [*_items(content, "affected", where), *_items(content, "works", where)]
            recorded = _recorded(known_component(name))
            content["night"] = night = {
                **night,
                name: boundary.sides([str(rule.get(name)) for rule in rules], recorded),
            }
    return content | {name: resolved(content[name]) for name in tables if boundaries and name in content}


@cache
def _recorded(component: str) -> tuple[str, ...]:
    """Return the recorded releases of a component, oldest first; () where none are recorded."""
    releases = read_toml(FACTS / "releases.toml").get(component.replace("-", "_"), [])
    return tuple(sorted((release["version"] for release in releases), key=parse))


def _axes(content: Mapping[str, Any], where: str) -> list[str]:
    """Return the axes of an entry; the default are those of a call into Transformer Engine, or of cases on a base."""
    default = [MCORE, TE] if "contract" in content else [BASE, MCORE]
    words = decode(tuple[str, ...], content.get("axes", default), f"{where}: axes")
    return [name if name == BASE else known_component(name) for name in words]


def _cases(item: Mapping[str, Any], shared: Shared, where: str) -> list[dict[str, Any]]:
    """Return the cases of one [[case]]: the table itself, or one per item of `each`, which adds to the table's keys."""
    group = {key: value for key, value in item.items() if key != "each"}
    cases = []
    for variant in decode(tuple[Mapping[str, Any], ...], item.get("each", [{}]), f"{where}: case.each"):
        merged = {**group, **variant}
        tables = decode(tuple[Mapping[str, Any], ...], [part.get("arguments", {}) for part in (group, variant)], where)
        merged["arguments"] = {**tables[0], **tables[1]}
        limits = {**_limits(group, shared, where), **_limits(variant, shared, where)}
        cases.append({**merged, "limits": limits} if limits else merged)
    return cases


def _limits(case: Mapping[str, Any], shared: Shared, where: str) -> Mapping[str, str]:
    """Return the limits of a case as TOML texts; a limits key that is a text names shared ones."""
    limits = case.get("limits", {})
    if isinstance(limits, str):
        return _named(limits, shared.limits, "limits", f"{where}: case.limits")
    return decode(dict[str, Any], limits, f"{where}: case.limits")


def _named(name: str, known: Mapping[str, T], what: str, where: str) -> T:
    if name not in known:
        expected = f"a name of {SHARED.name} in the kit"
        raise MatrixError(f"no such {what}", where=where, got=name, expected=expected, fix=closest(name, known))
    return known[name]


def _items(content: Mapping[str, Any], key: str, path: Path | str) -> Sequence[Mapping[str, Any]]:
    items = content.get(key, [])
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise MatrixError("not a list of tables", where=f"{path}: {key}", expected=f"[[{key}]] tables")
    return items


def _tables(path: Path, kinds: Mapping[str, type]) -> dict[str, Any]:
    return _built(path, read_toml(path), kinds)


def _built(path: Path, content: Mapping[str, Any], kinds: Mapping[str, type]) -> dict[str, Any]:
    if unknown := next((key for key in content if key not in kinds), ""):
        fix = closest(unknown, kinds)
        raise MatrixError(
            "unknown table", where=f"{path}: {unknown}", got=unknown, expected="a table of this file", fix=fix
        )
    return {
        name: decode(tuple[kind, ...], content.get(name, []), f"{path}: {name}")  # type: ignore[valid-type]
        for name, kind in kinds.items()
    }


@dataclass(frozen=True)
class _Preflights:
    options: tuple[PreflightOptions, ...]


def preflight_options(*folders: Path) -> tuple[PreflightOptions, ...]:
    """Return the table of each failure in these folders (default: `roots`) that has preflight.py; no code is executed.

    Raises MatrixError for a table that can't be read.
    """
    folders = folders or tuple(roots())
    paths = [path for folder in folders for path in entries(folder) if path.with_name("preflight.py").is_file()]

    def read() -> _Preflights:
        tables = ((path, read_toml(path).get("preflight", {})) for path in paths if not is_draft(path))
        return _Preflights(tuple(decode(PreflightOptions, table, f"{path}: preflight") for path, table in tables))

    return kept(_Preflights, name_of(*folders, Path("preflights")), lambda: paths, read).options


@dataclass(frozen=True)
class GpuRun:
    """How many cases of a failure ran on a GPU on a date, as expected: reproduced, and holding."""

    date: str
    gpu: str
    reproduced: int = 0
    holds: int = 0


@dataclass(frozen=True)
class ProjectNight:
    """What the project's own night of a date reproduced of a failure: how often at each level; and its runs on GPUs."""

    date: str
    reproduced: Mapping[str, int]
    run: tuple[GpuRun, ...] = ()


def night_of(failure: Failure) -> ProjectNight | None:
    """Return the night.toml of a failure's folder, with its gpu.toml; None without one."""
    path, on_gpu = failure.folder / NIGHT_FILE, failure.folder / GPU_FILE
    if not path.is_file():
        return None
    table = read_toml(path) | (read_toml(on_gpu) if on_gpu.is_file() else {})
    return decode(ProjectNight, table, str(path))


def evidence_of(night: ProjectNight | None) -> str:
    """Return when and at which levels the project reproduced a failure, or that it was only read."""
    if night is None:
        return "read by the project; none of its recorded nights reproduces it"
    counts = night.reproduced.items()
    texts = [f"{counted(count, 'time')} at level {level}" for level, count in counts]
    runs = (f"; on a GPU ({run.gpu}, {run.date}) {run.reproduced} reproduced, {run.holds} held" for run in night.run)
    return f"reproduced {' and '.join(texts)} in the project's night of {night.date}{''.join(runs)}"
