"""Create tox environments from the catalog: one for each line, and one for each base, in which a run's cases run.

tox.ini has the templates, the catalog the facts.
"""

from __future__ import annotations

import sys

if sys.version_info < (3, 10):  # noqa: UP036  (before imports that need it; tox itself runs on older ones)
    raise SystemExit(
        f"Megatrix needs Python 3.10 or later; this tox runs on {'.'.join(map(str, sys.version_info[:3]))}\n"
        "  fix: pip install uv && uvx --python 3.12 tox run -e nightly"
    )

import importlib.util
import json
import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from tox.config.loader.memory import MemoryLoader
from tox.config.sets import ConfigSet
from tox.config.types import Command
from tox.plugin import impl
from tox.report import HandledError
from tox.session.state import State
from tox.tox_env.api import ToxEnv
from tox.tox_env.python.pip.req_file import PythonDeps

from matrix.ground.catalog.loading import load
from matrix.ground.catalog.model import ReaderBase, Wheels
from matrix.ground.errors import MatrixError, closest
from matrix.prove.execution import interrupt
from matrix.prove.planning.catalog_lines import Line, lines
from matrix.prove.provision.indexes import site_environment
from matrix.prove.provision.interpreters import find as find_interpreter
from matrix.prove.provision.tox_environments import (
    CELL_SETTINGS,
    VARIABLES,
    Turn,
    environments,
    has_driver,
    left_out,
    requirements,
)

# tox has the project's folder on sys.path only while it loads this file: no imports inside hooks.
from matrix.read import kernel
from matrix.read.commands import python_code

# tox-uv passes UV_* on to uv and to the environments, so this applies to venv creation and every install.
os.environ.update(site_environment())
# Interpreters are downloaded by a run alone, which first reports it (matrix.prove.provision.python_downloads).
os.environ.setdefault("MEGATRIX_PYTHON_DOWNLOADS", os.environ.get("UV_PYTHON_DOWNLOADS", ""))
os.environ["UV_PYTHON_DOWNLOADS"] = "never"
# A run starts tox again, by this interpreter: a provisioned tox is not on PATH.
os.environ["MEGATRIX_TOX"] = sys.executable

interrupt.once_in_tox(provisions=importlib.util.find_spec("tox_uv") is None)
os.environ[kernel.PARENT] = str(os.getpid())  # its commands end with it

find = cache(find_interpreter)  # dozens of environments use a handful of Pythons
driver = cache(has_driver)
UNITS = {f"unit{minor.replace('.', '')}": minor for minor in ("3.10", "3.11", "3.12", "3.13")}
TESTS = "tests"  # tox.ini has the rest of it
BROKEN = ""  # the error of the catalog; raised by a hook, since tox prints a traceback for an error at import
LINES: dict[str, Line] = {}
BASES: dict[str, Wheels | ReaderBase] = {}
try:
    # For a run in progress the tables alone: an unfinished entry does not disturb it.
    CATALOG = load(read=()) if "MEGATRIX_RUN" in os.environ else load()
    LINES, BASES = lines(CATALOG), environments(CATALOG)
except MatrixError as error:
    BROKEN = str(error)


# uv unpacks a wheel once for each process that finds it missing in its cache, and keeps every copy: two environments of
# torch that were made at once took 1.8 GB more.
INSTALLATION = Turn()


@impl
def tox_on_install(tox_env: ToxEnv) -> None:
    """Wait until no other environment installs."""
    INSTALLATION.begin(tox_env.name)


@impl
def tox_before_run_commands(tox_env: ToxEnv) -> None:
    """Let the next environment install while this one runs its commands, and write their variables where requested."""
    INSTALLATION.end(tox_env.name)
    if folder := os.environ.get(VARIABLES):
        (Path(folder) / tox_env.name).write_text(json.dumps(tox_env.environment_variables), encoding="utf-8")


@impl
def tox_env_teardown(tox_env: ToxEnv) -> None:
    """Let the next environment install after one that failed, or that runs no commands (--notest)."""
    INSTALLATION.end(tox_env.name)


@impl
def tox_extend_envs() -> Iterable[str]:
    """Return the names of the environments."""
    return (*LINES, *BASES, *UNITS)


@impl
def tox_add_core_config(core_conf: ConfigSet, state: State) -> None:
    """Add the settings of the selected environments, from the catalog."""
    if BROKEN:
        raise HandledError(BROKEN)
    selected = list(getattr(state.conf.options, "env", None) or ())
    refuse_unknown(selected, set(state.conf))
    for name in selected or (*LINES, *BASES, *UNITS):
        loaders = state.conf.memory_seed_loaders[name]
        if name in LINES:
            loaders.append(MemoryLoader(base=["line", "testenv:nightly"], description=LINES[name].description))
        elif name in BASES:
            loaders.append(loader(BASES[name], core_conf))
        elif name in UNITS:
            text = f"the tests of the project's code, on Python {UNITS[name]}"
            loaders.append(on_python((UNITS[name],), base=["unit"], description=text))
        elif name == TESTS:
            text = "the project's own tests, on the oldest Python of this machine"
            loaders.append(on_python((*UNITS.values(),), description=text))


def refuse_unknown(selected: Iterable[str], known: set[str]) -> None:
    """Raise HandledError for an unknown name; tox would run one made of known factors as an empty environment."""
    for name in selected:
        if name not in known:
            raise HandledError(f"no such environment: {name}\n  {closest(name, known - {*BASES})}")


def loader(base: Wheels | ReaderBase, core: ConfigSet) -> MemoryLoader:
    """Return the settings of the environment of a base."""
    names = core["work_dir"] / f"{base.id}-gpu-only.txt"
    less = left_out(base.gpu_only if isinstance(base, Wheels) else (), names, os.environ, driver=driver())
    return on_python(
        (*base.pythons, *base.fallbacks),
        base=["cell"],
        deps=PythonDeps(list(requirements(base)), root=core["tox_root"]),
        description=f"the base {base.id}: a run makes it; pytest over its cases",
        # A loader's set_env replaces that of the template.
        set_env={**CELL_SETTINGS, **less, "MEGATRIX_COMMAND": "tox run -e megatrix --", "MEGATRIX_BASE": base.id},
    )


def on_python(minors: tuple[str, ...], **settings: object) -> MemoryLoader:
    """Return settings with the first of these Pythons; without one, the environment fails with the error when run."""
    try:
        python = find(minors)
    except MatrixError as error:
        command = Command(python_code("python", f"raise SystemExit({str(error)!r})"))
        text = f"{settings['description']}; {error.what}"
        return MemoryLoader(base=["testenv"], base_python=[sys.executable], commands=[command], description=text)
    # tox-uv uses the first of base_python only, so the preference is applied before. An absolute path stops tox from
    # deriving a version from the name, and uv from trying pyenv's shims.
    return MemoryLoader(base_python=[str(python.path)], **settings)
