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


def roots(environ: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """Return the folders that hold failures: the project's, then the site's. Raises MatrixError for a missing one."""
    site = [Path(name) for name in environ.get(SITE, "").split(os.pathsep) if name]
    for path in site:
        if not (path.is_absolute() and path.is_dir()):
            raise MatrixError(
                "no such folder of failures",
                where=SITE,
                got=path,
                expected="absolute paths of folders that hold a folder for each failure",
            )
    return (FAILURES, *site)


def default_root(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the cache folder: $MEGATRIX_CACHE, $XDG_CACHE_HOME/megatrix or ~/.cache/megatrix."""
    if environ.get("MEGATRIX_CACHE"):
        return Path(environ["MEGATRIX_CACHE"]).expanduser().absolute()
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "megatrix")


def with_site(environ: Mapping[str, str], *folders: Path) -> dict[str, str]:
    """Return the variables of processes that also load the failures in these folders."""
    site = [name for name in environ.get(SITE, "").split(os.pathsep) if name]
    names = dict.fromkeys([*site, *map(str, folders)])
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
