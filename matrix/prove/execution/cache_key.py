"""The results of cases that need no process: they are unavailable here, or cached with the same content.

The cache key of a case is a hash of everything its verdict depends on. A key with a verdict does not run again.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from matrix import PACKAGE
from matrix.ground.cases.cells import on_python
from matrix.ground.cases.machine_requirements import WITHOUT_GPU, Placement, lacks
from matrix.ground.catalog.failure import Failure, Level
from matrix.ground.catalog.folders import ENTRY, with_site
from matrix.ground.catalog.machine import Machine, PythonEnvironment
from matrix.ground.catalog.model import Catalog
from matrix.ground.catalog.regular_file import read_regular
from matrix.ground.catalog.stack import Cell
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.outcome import Outcome, OutcomeKind
from matrix.ground.verdicts.planned import Planned
from matrix.ground.verdicts.record import Record
from matrix.prove.execution.engine import Engine, offer_of
from matrix.prove.execution.reproduction import not_run
from matrix.prove.planning.rerun import reproduce_line
from matrix.prove.provision import host
from matrix.prove.provision.case_overlays import overlay_digest, overlay_specs
from matrix.prove.provision.host import ExecutionSite
from matrix.prove.store.history import History
from matrix.read.api.recording import MCORE, TE, recorded_file

# The modules that run a case and classify its outcome; their imports are included in the hash.
RUNS: Final = (
    "matrix.prove.execution.reproduction",
    "matrix.prove.execution.ranks.supervisor",
    "matrix.prove.execution.ranks.rank_main",
)
READS: Final = ("matrix.prove.execution.reproduction", "matrix.prove.execution.preflights")
# Documentation, without effect on verdicts.
TITLES: Final = frozenset(
    ("title", "references", "upstream", "symptom", "cause", "fix", "workaround", "claim", "reached_by", "folder")
)


@dataclass(frozen=True)
class Evidence:
    """Everything that the verdict of a case depends on: `host` as JSON values, `overlays` to `recorded` as digests.

    `recorded` are the recorded APIs of a case of level contract.
    """

    case: str
    expectation: str
    python: str
    packages: Mapping[str, str]
    image: str = ""
    overlays: tuple[str, ...] = ()
    host: Mapping[str, Any] = field(default_factory=dict)
    entry: str = ""
    code: str = ""
    recorded: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Return the cache key."""
        content = {
            "case": [self.case, self.expectation],
            "base": {"python": self.python, "packages": dict(self.packages), "image": self.image},
            **{name: getattr(self, name) for name in ("overlays", "host", "entry", "code", "recorded")},
        }
        return digest(content)


def case_key(
    planned: Planned,
    failure: Failure,
    environment: PythonEnvironment,
    overlays: Iterable[str],
    site: ExecutionSite,
    image: str = "",
    placement: Placement = WITHOUT_GPU,
) -> str:
    """Return the cache key of a case in this environment; `overlays` are the digests of its overlays.

    How its ranks share a GPU is part of it.
    Raises MatrixError if a file that the verdict depends on can't be read.
    """
    shared = {"shared": asdict(replace(placement, note=""))} if placement.each else {}
    return Evidence(
        case=planned.key,
        expectation=planned.expectation.value,
        python=environment.python or "",
        packages=environment.packages,
        image=image,
        overlays=tuple(overlays),
        host=site.capabilities(planned.level) | shared,
        entry=entry_digest(failure),
        code=code_digest(failure.folder, planned.level, modules_of(failure)),
        recorded=recorded_digests(planned.cell) if planned.level is Level.CONTRACT else (),
    ).key


def entry_digest(failure: Failure) -> str:
    """Return the hash of a failure's catalog entry without its documentation (TITLES)."""
    entry = {name: value for name, value in asdict(failure).items() if name not in TITLES}
    return digest(json.loads(json.dumps(entry, default=str)))


def modules_of(failure: Failure) -> tuple[str, ...]:
    """Return the modules outside of the folder whose functions the cases run: the kit's, for layouts of parity."""
    return tuple(sorted(filter(_file, {case.function[0] for case in failure.case})))


@cache
def code_digest(folder: Path, level: Level, modules: tuple[str, ...]) -> str:
    """Return the hash of a failure's folder and of every module imported by its code, the ranks and the judge.

    `modules` are those of modules_of.
    """
    files = {
        path.name: path
        for path in folder.iterdir()
        # The entry is hashed as data; a test of the failure has no effect.
        if path.suffix in (".py", ".toml") and path.name != ENTRY and not path.name.startswith("test_")
    }
    started = [*files.values(), *filter(None, map(_file, modules))]
    imported = code_of(level) | closure(path for path in started if path.suffix == ".py")
    files |= {str(path.relative_to(PACKAGE)): path for path in imported if path.is_relative_to(PACKAGE)}
    return digest({name: file_digest(path) for name, path in files.items()})


def code_of(level: Level) -> set[Path]:
    """Return every module of the ranks and the judge, which no failure changes."""
    return closure(path for name in (READS if level is Level.CONTRACT else RUNS) if (path := _file(name)))


def recorded_digests(cell: Cell) -> tuple[str, ...]:
    """Return the hashes of the recorded APIs of a cell; for a release that is not recorded, its version.

    Raises MatrixError if a record can't be read.
    """
    releases = [
        (version, recorded_file(package, version))
        for package, version in ((name, str(cell.stack[name])) for name in (MCORE, TE))
    ]
    return tuple(file_digest(path) if path else version for version, path in releases)


def closure(paths: Iterable[Path]) -> set[Path]:
    """Return the files and every module of this package that they import, at any place in the code."""
    modules: set[Path] = set()
    unread = list(paths)
    while unread:
        path = unread.pop()
        if path not in modules:
            modules.add(path)
            unread += imports(path)
    return modules


@cache
def imports(path: Path) -> tuple[Path, ...]:
    """Return the files of this package that a file imports, except under TYPE_CHECKING."""
    tree = ast.parse(read(path), str(path))
    return tuple(module for name in _imported(tree) if (module := _file(name)))


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
    package, *parts = name.split(".")
    if package != PACKAGE.name:
        return None
    path = PACKAGE.joinpath(*parts)
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


@cache
def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file. Raises MatrixError if it can't be read."""
    return hashlib.sha256(read(path)).hexdigest()


def read(path: Path) -> bytes:
    """Return the content of a file. Raises MatrixError if it can't be read."""
    problem, fix = "a file that verdicts depend on can't be read", "restore it: cached verdicts depend on its content"
    return read_regular(path, what=problem, fix=fix)


def digest(value: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


class ImmediateResults:
    """Returns the records of cases that need no process.

    `run` is the name of the run that they belong to, `environ` its variables.
    """

    def __init__(
        self,
        catalog: Catalog,
        engine: Engine,
        site: ExecutionSite,
        history: History,
        run: str,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._catalog, self._site, self._history, self._run = catalog, site, history, run
        self._environ, self._settings = environ, host.load_configuration(environ)
        self._installed = cache(engine.installed)  # 20 ms per environment, which hundreds of cases share
        self._offer = cache(lambda base: offer_of(catalog, engine, base, self._settings))

    def unavailable(self, planned: Planned) -> Record | None:
        """Return the record of a case that lacks something, with all that it lacks; None if it can run."""
        offer = self._offer(planned.cell.base)
        lack = self._site.lack(self._catalog, planned, offer)
        if lack is None:
            return None
        complete = replace(offer, lack="", clones=None)  # what the site lacks when base and clones are there
        missing = [lack, *lacks(self._catalog, planned, offer, Machine())]
        missing += filter(None, [self._site.lack(self._catalog, planned, complete)])
        outcome = Outcome(OutcomeKind.UNAVAILABLE, lack.text, lacks=tuple(dict.fromkeys(missing)))
        return not_run(planned, self._catalog, outcome, self._run)

    def cached(self, planned: Planned) -> Record | None:
        """Return the cached record of a case with the same content, None if it must run."""
        if planned.level is Level.GPU:
            return None  # it also depends on the GPUs and the user-mode driver, which are unknown before the case runs
        contents = self._installed(planned.cell.base)
        if contents is None:
            return None
        case = on_python(self._catalog, planned, contents.minor)
        try:
            parts = filter(None, (case, case.writer))
            specs = [spec for part in parts for spec in overlay_specs(part, contents, self._settings)]
            digests = map(overlay_digest, specs)
            failure = self._catalog.failure(case.failure)
            content = case_key(case, failure, contents, digests, self._site, contents.image)
            record = self._history.cached(content)
        except MatrixError:  # of a source, which the case reports when it runs, or of the history, as the report will
            return None
        if record is None or record.key != case.key:
            return None
        line = reproduce_line(case, with_site(self._environ, *self._catalog.site))
        return replace(record, planned=case, run=self._run, reproduce=line)
