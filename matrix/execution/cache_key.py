"""The cache key of a case: a hash of everything its verdict depends on. A key with a verdict does not run again."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, Final

from matrix.catalog.cell import Cell
from matrix.catalog.failure import Failure, Level
from matrix.catalog.folders import ENTRY
from matrix.contract.recording import MCORE, TE, find_recorded
from matrix.errors import MatrixError
from matrix.provision.host import ExecutionSite
from matrix.provision.installed import PythonEnvironment
from matrix.provision.project import PACKAGE
from matrix.verdicts.planned import Planned

# The modules that run a case and classify its outcome; their imports are included in the hash.
RUNS: Final = ("matrix.execution.reproduction", "matrix.execution.ranks.supervisor", "matrix.execution.ranks.rank")
READS: Final = ("matrix.execution.reproduction", "matrix.execution.reading")
# Documentation, without effect on verdicts.
TITLES: Final = (
    "title",
    "references",
    "upstream",
    "symptom",
    "cause",
    "fix",
    "workaround",
    "claim",
    "reached_by",
    "folder",
)


def case_key(
    planned: Planned,
    failure: Failure,
    environment: PythonEnvironment,
    overlays: Iterable[str],
    site: ExecutionSite,
    image: str = "",
) -> str:
    """Return the cache key of a case in this environment; `overlays` are the digests of its overlays.

    Raises MatrixError if a file that the verdict depends on can't be read.
    """
    return digest(
        {
            "case": [planned.key, planned.expectation.value],
            "base": {
                "python": environment.python,
                "packages": dict(sorted(environment.packages.items())),
                "image": image,
            },
            "overlays": list(overlays),
            "host": site.capabilities(planned.level),
            "entry": entry_digest(failure),
            "code": code_digest(failure.folder, planned.level),
            "recorded": recorded_digests(planned.cell) if planned.level is Level.CONTRACT else [],
        }
    )


def entry_digest(failure: Failure) -> str:
    """Return the hash of a failure's catalog entry without its documentation (TITLES)."""
    entry = {name: value for name, value in asdict(failure).items() if name not in TITLES}
    return digest(json.loads(json.dumps(entry, default=str)))


@cache
def code_digest(folder: Path, level: Level) -> str:
    """Return the hash of a failure's folder and of every module imported by its code, the ranks and the judge."""
    own = [path for path in sorted(folder.iterdir()) if path.suffix in (".py", ".toml") and not _is_aside(path)]
    roots = [path for name in (READS if level is Level.CONTRACT else RUNS) if (path := _file(name))]
    used = closure([*roots, *(path for path in own if path.suffix == ".py")])
    named = {str(path.relative_to(PACKAGE)): path for path in used if path.is_relative_to(PACKAGE)}
    return digest({name: file_digest(path) for name, path in {**named, **{path.name: path for path in own}}.items()})


def _is_aside(path: Path) -> bool:
    """Return whether a file is not hashed by content: the entry, which is hashed as data, or a test of the failure."""
    return path.name == ENTRY or path.name.startswith("test_")


def recorded_digests(cell: Cell) -> list[str]:
    """Return the hashes of the recorded APIs of a cell; for a release that is not recorded, its version."""
    found = []
    for package, version in ((MCORE, cell.mcore), (TE, cell.te)):
        try:
            found.append(file_digest(find_recorded(package, version)))
        except MatrixError:
            found.append(version)
    return found


def closure(paths: Iterable[Path]) -> set[Path]:
    """Return the files and every module of this package that they import, at any place in the code."""
    found: set[Path] = set()
    left = list(paths)
    while left:
        path = left.pop()
        if path not in found:
            found.add(path)
            left += imports(path)
    return found


@cache
def imports(path: Path) -> tuple[Path, ...]:
    """Return the files of this package that a file imports, except under TYPE_CHECKING."""
    tree = ast.parse(read(path), str(path))
    return tuple(found for name in _imported(tree) if (found := _file(name)))


def _imported(tree: ast.AST) -> Iterator[str]:
    """Yield dotted names that may be modules of this package."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif not isinstance(node, ast.expr):  # four fifths of a file
            yield from _imported(node)


@cache
def _file(name: str) -> Path | None:
    """Return the file of a module of this package, None for any other name."""
    first, *rest = name.split(".")
    if first != PACKAGE.name:
        return None
    path = PACKAGE.joinpath(*rest)
    return next((one for one in (path.with_suffix(".py"), path / "__init__.py") if one.is_file()), None)


@cache
def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file. Raises MatrixError if it can't be read."""
    return hashlib.sha256(read(path)).hexdigest()


def read(path: Path) -> bytes:
    """Return the content of a file. Raises MatrixError if it can't be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise MatrixError(
            "a file that verdicts depend on can't be read", where=str(path), got=error.strerror,
            fix="restore it: cached verdicts depend on its content",
        ) from None  # fmt: skip


def digest(value: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
