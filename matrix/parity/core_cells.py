"""The cell in which a megatron-core is judged: a base of wheels, and the core laid over it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from matrix.catalog.folders import default_root
from matrix.catalog.machine import PythonEnvironment
from matrix.catalog.model import Catalog, Wheels
from matrix.catalog.stack import MCORE
from matrix.catalog.versions import parse
from matrix.errors import MatrixError
from matrix.execution.engine import Tox, environment_folder, run_process, tox_command, work_folder
from matrix.execution.engine import settings as cell_variables
from matrix.parity.point_process import PointProcess, command
from matrix.provision import configuration, package_source, project
from matrix.provision import installed as environments
from matrix.provision.case_overlays import PRELOADED
from matrix.provision.overlays import Overlays, OverlaySpec
from matrix.provision.tox_environments import CELL_SETTINGS
from matrix.store.paths import make_folder

KEPT = ("HOME", "PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TMPDIR")  # variables of this process that its cells have


@dataclass(frozen=True)
class CoreCell:
    """A core and its base. `release` chooses factors, of a commit the next release. `identity` is what the core is."""

    name: str
    release: str
    identity: str
    base: str
    python: Path
    overlay: Path

    def judge(self, log: Path) -> PointProcess:
        """Return the judge of this cell; its process starts with the first point."""
        kept = {name: os.environ[name] for name in KEPT if name in os.environ}
        environment = {**kept, **CELL_SETTINGS, **cell_variables(), "PYTHONPATH": str(self.overlay)}
        return PointProcess(command(self.python, project.folder()), environment, log)


def base_of(catalog: Catalog, release: str) -> Wheels:
    """Return the newest base that a release may be planned on; those of the night first, which are made already."""
    bases = [base for night in (True, False) for base in reversed(catalog.standard) if bool(base.night) is night]
    for base in bases:
        for python in base.pythons[:1]:
            if not catalog.excluded(catalog.cell(base.id, {MCORE: release}, python=python).stack):
                return base
    raise MatrixError("no base of wheels for this megatron-core", got=release, expected="a released megatron-core")


def core_cell(catalog: Catalog, source: str, log: Path, say: Callable[[str], None]) -> CoreCell:
    """Return the cell of a release, a wheel, a revision or a folder; its base and overlay are made where missing.

    Raises MatrixError when they can't be.
    """
    parsed = package_source.parse(configuration.load().resolve(source), MCORE)
    contents = package_source.inspect(parsed)
    release = parse(contents.version).base_version  # a candidate's own version is in no range of its release
    base = base_of(catalog, release)
    environment = environments.at(environment_folder(base.id)) or _made(catalog, base, log, say)
    spec = OverlaySpec(
        (parsed,),
        environment.minor,
        {name: environment.packages[name] for name in PRELOADED if name in environment.packages},
        environment.path,
    )
    overlay = Overlays(default_root()).provide(spec)
    assert environment.path
    return CoreCell(source, release, contents.identity, base.id, environment.path, overlay.path)


def _made(catalog: Catalog, base: Wheels, log: Path, say: Callable[[str], None]) -> PythonEnvironment:
    """Make the environment of a base with tox, and return it."""
    Tox(1, {base.id: base}, say=say).ready([base.id])
    name, folder = base.id, environment_folder(base.id)
    say(f"tox makes {name}; its output: {log}")
    make_folder(log.parent, exist_ok=True)
    options = [
        "--notest",
        "--workdir",
        str(work_folder(os.environ)),
        "-c",
        str(project.folder() / "tox.ini"),
        "-e",
        name,
    ]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("TOX_")}
    status = run_process([*tox_command(os.environ), "run", *options], environment | cell_variables(), log)
    if status == 0 and (environment_made := environments.at(folder)):
        return environment_made
    raise MatrixError(
        "tox can't make this base", where=str(log), got=f"exit status {status}", fix=f"tox run -e {name} --notest"
    )
