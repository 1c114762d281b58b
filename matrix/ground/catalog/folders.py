"""The folders of failures: tests/failures in a checkout, matrix/failures in an installed wheel; a site adds its own.

A folder has the name of its failure's id, with _ for -. Its modules are loaded by path: no other module imports them.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Final

from matrix import PACKAGE
from matrix.ground.errors import MatrixError

FAILURES: Final = next(
    (path for path in (PACKAGE / "failures", PACKAGE.parent / "tests" / "failures") if path.is_dir()),
    PACKAGE / "failures",
)
ENTRY: Final = "failure.toml"
SITE: Final = "MEGATRIX_FAILURES"  # the variable with a site's folders of failures, separated as in PATH
SETTINGS: Final = "megatrix.toml"  # `failures` lists them, too: in the checkout, or without one in the current folder


def site_folders(environ: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """Return a site's folders of failures: those of MEGATRIX_FAILURES, without it those of megatrix.toml."""
    if environ.get(SITE):
        return tuple(Path(name).absolute() for name in environ[SITE].split(os.pathsep) if name)
    settings = (Path.cwd() if FAILURES.parent == PACKAGE else PACKAGE.parent) / SETTINGS
    if not settings.is_file():
        return ()
    from matrix.ground.catalog.schema import read_toml  # cells have no such file

    folders = tuple(settings.parent / str(name) for name in read_toml(settings).get("failures", ()))
    if folders and FAILURES.parent == PACKAGE:
        fix = f"if you trust their code: export {SITE}={os.pathsep.join(map(str, folders))}"
        raise MatrixError(
            "the current folder must not choose code that runs", where=str(settings), got="failures", fix=fix
        )
    return folders


def roots(environ: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """Return the folders that hold failures: the project's, then the site's. Raises MatrixError for a missing one."""
    site = site_folders(environ)
    for path in site:
        if not path.is_dir():
            raise MatrixError(
                "no such folder of failures",
                where=SITE if environ.get(SITE) else SETTINGS,
                got=path,
                expected="folders that hold a folder for each failure",
            )
    return (FAILURES, *site)


def new_root(into: Path | None, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder for a new failure: `into`, else a site's first, else the checkout's.

    An installed package has none, since its next upgrade deletes what is in it: then it is ./failures.
    """
    own = FAILURES if FAILURES.parent != PACKAGE else Path("failures").absolute()
    return into.absolute() if into else (*site_folders(environ), own)[0]


def default_root(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the cache folder: $MEGATRIX_CACHE, $XDG_CACHE_HOME/megatrix or ~/.cache/megatrix."""
    if environ.get("MEGATRIX_CACHE"):
        return Path(environ["MEGATRIX_CACHE"]).expanduser().absolute()
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "megatrix")


def with_site(environ: Mapping[str, str], *folders: Path) -> dict[str, str]:
    """Return the variables of processes that also load the failures in these folders."""
    names = dict.fromkeys(map(str, (*site_folders(environ), *folders)))
    return {**environ, SITE: os.pathsep.join(names)} if names else {**environ}


def entries(root: Path = FAILURES) -> list[Path]:
    """Return the failure.toml of each failure, sorted by folder."""
    return sorted(root.glob(f"*/{ENTRY}"))


def folder_name(id: str) -> str:
    """Return the name of a failure's folder."""
    return id.replace("-", "_")


def load_module(folder: Path, name: str) -> ModuleType:
    """Return the module `name` (reproduction, preflight, chart) of a failure's folder.

    The folder becomes a package, so its modules can use relative imports. Raises ImportError.
    """
    package = f"megatrix_failure_{folder.name}"
    known = sys.modules.get(package)
    if known is None or list(known.__path__) != [str(folder)]:
        for loaded in [module for module in sys.modules if module.partition(".")[0] == package]:
            del sys.modules[loaded]
        namespace = ModuleType(package, f"The modules of {folder}.")
        namespace.__path__ = [str(folder)]
        sys.modules[package] = namespace
    return importlib.import_module(f"{package}.{name}")
