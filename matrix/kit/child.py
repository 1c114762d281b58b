"""Prepare a Python process that a rank starts, as the rank itself was prepared: hidden modules, devices, stand-ins.

The process imports a sitecustomize module from a folder first on PYTHONPATH. It hides the rank's hidden modules at
once. The rest waits for the first import of megatron or transformer_engine: other processes stay as they are.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from matrix import PACKAGE
from matrix.kit import absent_packages

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

PREPARED: Final = ("megatron", "transformer_engine", "apex")
_SITE: Final = """\
import sys
sys.path.append({project!r})
from matrix.kit import child
child.prepare({settings!r}, {folder!r})
"""


def settings_of(rank: Rank) -> str:
    """Return what a process of the rank needs, as JSON."""
    values = asdict(rank)
    return json.dumps({name: values[name] for name in ("device", "hidden", "stand_ins")})


def site_folder(rank: Rank) -> Path:
    """Return a new folder of the rank with the sitecustomize module, for PYTHONPATH."""
    folder = rank.workdir / f"site-{rank.rank}"
    folder.mkdir(parents=True, exist_ok=True)
    project = str(PACKAGE.parent)
    text = _SITE.format(project=project, settings=settings_of(rank), folder=str(folder))
    (folder / "sitecustomize.py").write_text(text, encoding="utf-8")
    return folder


def prepare(settings: str, folder: str) -> None:
    """Prepare this process; `folder` holds the sitecustomize module that calls it. The machine's own one runs next."""
    options = json.loads(settings)
    sys.modules.update(dict.fromkeys(options["hidden"]))
    sys.meta_path.insert(0, _FirstImport(options))
    spec = PathFinder.find_spec("sitecustomize", [path for path in sys.path if path != folder])
    if spec and spec.loader:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


class _FirstImport:
    """Import hook that prepares the process when it first imports one of PREPARED, and then removes itself."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = given

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        if name not in PREPARED:
            return None
        sys.meta_path.remove(self)
        if self._given["device"] == "cpu":
            _without_gpu()
        absent_packages.install(**self._given["stand_ins"])
        return importlib.util.find_spec(name)


def _without_gpu() -> None:
    from matrix.kit import cpu_device, te_extension

    cpu_device.install()
    spec = sys.modules.get("transformer_engine", True) and importlib.util.find_spec("transformer_engine")
    if spec and not te_extension.compiled(spec):
        te_extension.install(Path(tempfile.mkdtemp(prefix="te-")) / "site")
        cpu_device.claim_gpu()
