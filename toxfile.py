"""tox environments made from the catalog: one per `wheels` base. tox.ini keeps the templates, the catalog the facts."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from tox.config.loader.memory import MemoryLoader
from tox.config.sets import ConfigSet
from tox.config.types import Command
from tox.plugin import impl
from tox.report import HandledError
from tox.session.state import State
from tox.tox_env.python.pip.req_file import PythonDeps

from matrix.catalog.loading import load
from matrix.errors import MatrixError, closest

# tox has the project's folder on sys.path only while it loads this file: import everything here, nothing in a hook.
from matrix.provision import current_image as standing
from matrix.provision.indexes import site_environment
from matrix.provision.interpreters import find as look_for
from matrix.provision.tox_environments import CELL_SETTINGS, ToxEnvironment, environments, in_place

# tox-uv passes UV_* on to uv and to the environments; what is set here reaches venv creation and every install.
os.environ.update(site_environment())
os.environ.setdefault("UV_PYTHON_DOWNLOADS", "never")
# The night starts tox again, with the tox that runs now: a provisioned one is not on PATH.
os.environ["MEGATRIX_TOX"] = sys.executable

find = cache(look_for)  # hundreds of environments ask for a handful of Pythons
UNITS = {f"unit{minor.replace('.', '')}": minor for minor in ("3.10", "3.11", "3.12", "3.13")}
# A line on another torch: there are hundreds, and `tox list` shows those alone that somebody names.
ON_TORCH = re.compile(r"te\d+-torch\d+")
NAMED = set(ON_TORCH.findall(" ".join([*sys.argv, *(os.environ.get(name, "") for name in ("TOXENV", "TOX_ENV"))])))
BROKEN = ""  # what is wrong with the catalog; said by a hook, since tox shows a traceback for an error at import
try:
    KNOWN = environments(load())
    if IMAGE := standing.find():
        KNOWN = {name: in_place(one, IMAGE) for name, one in KNOWN.items()}
except MatrixError as error:
    BROKEN, KNOWN = str(error), {}


@impl
def tox_extend_envs() -> Iterable[str]:
    """Name the environments."""
    return (*(name for name in KNOWN if name in NAMED or not ON_TORCH.fullmatch(name)), *UNITS)


@impl
def tox_add_core_config(core_conf: ConfigSet, state: State) -> None:
    """Give the environments that are asked for what the catalog knows of them."""
    if BROKEN:
        raise HandledError(BROKEN)
    asked = list(getattr(state.conf.options, "env", None) or ())
    refuse_unknown(asked, set(state.conf))
    for name in asked or (*KNOWN, *UNITS):
        if name in KNOWN:
            state.conf.memory_seed_loaders[name].append(loader(KNOWN[name], core_conf["tox_root"]))
        elif name in UNITS:
            text = f"the tests of the project's code, on Python {UNITS[name]}"
            state.conf.memory_seed_loaders[name].append(on_python((UNITS[name],), base=["unit"], description=text))


def refuse_unknown(asked: Iterable[str], known: set[str]) -> None:
    """Raise HandledError: tox would run any name that is put together from known factors as an empty environment."""
    for name in asked:
        if name not in known:
            raise HandledError(f"no such environment: {name}\n  {closest(name, {*known, *KNOWN})}")


def loader(environment: ToxEnvironment, root: Path) -> MemoryLoader:
    """Return the settings of an environment of the catalog."""
    shared = {
        "base": ["cell"],
        "deps": PythonDeps(list(environment.requirements), root=root),
        "description": environment.description,
    }
    # A loader's set_env takes the place of the template's.
    told = {**CELL_SETTINGS, "MEGATRIX_TE": environment.te}
    if environment.interpreter is None:
        return on_python(environment.base.pythons, **shared, set_env={**told, "MEGATRIX_BASE": environment.base.id})
    # The session finds the base in what is installed. pip, for uv does not see what the image has.
    told |= {"MEGATRIX_BASE": "", "MEGATRIX_PLACE": environment.place}
    told |= {"MEGATRIX_PYTEST": f"tox run -e {environment.name} --", **uv_of_tox()}
    python = [str(environment.interpreter)]
    return MemoryLoader(base_python=python, runner="virtualenv", system_site_packages=True, set_env=told, **shared)


def uv_of_tox() -> dict[str, str]:
    """Return where the uv is that tox-uv brings along, for the overlays; {} where it is none, and uv is on PATH."""
    found = importlib.util.find_spec("uv")
    return {"UV": str(Path(sys.executable).with_name("uv"))} if found else {}


def on_python(minors: tuple[str, ...], **settings: object) -> MemoryLoader:
    """Return settings on the first of these Pythons; one that is not here is said when the environment runs."""
    try:
        python = find(minors)
    except MatrixError as error:
        command = Command(["python", "-c", f"raise SystemExit({str(error)!r})"])
        text = f"{settings['description']}; {error.what}"
        return MemoryLoader(base=["testenv"], base_python=[sys.executable], commands=[command], description=text)
    # tox-uv looks at the first of base_python only, so the preference is settled here. An absolute path keeps tox from
    # reading a version out of the name, and uv from trying pyenv's shims.
    return MemoryLoader(base_python=[str(python.path)], **settings)
