"""A stand-in for Transformer Engine's compiled extension: every line of its Python is real, no kernel is.

Lets a rank without a GPU import the real transformer_engine.pytorch from an overlay (1.8 to 1.13), build modules and
run into what its Python raises. What would need the extension raises NotImplementedError, so that nothing passes by it.
A record that used it says "stand-in: Transformer Engine's compiled extension".

TE's loader looks for transformer_engine_torch.*.so beside the package and loads it by path. So the package is linked
into a folder of the rank's own, next to an empty file of that name, and the loading of that one name is answered here.
Source of the list: transformer_engine/{common,pytorch}/__init__.py of 1.8 to 1.13.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import types
from collections.abc import Callable
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, Final

from matrix.ranks import absent_packages

NOTE: Final = "stand-in: Transformer Engine's compiled extension"
EXTENSION: Final = "transformer_engine_torch"


def install(folder: Path) -> None:
    """Make the transformer_engine on sys.path importable in this process; `folder` is the rank's own.

    Call it before torch's CUDA names are used by TE and before megatron.core is imported. Raises ImportError when no
    transformer_engine is on sys.path.
    """
    import torch
    import torch._dynamo  # it reads torch.cuda.Stream at import, so it must have seen the real one

    found = importlib.util.find_spec("transformer_engine")
    if found is None or found.submodule_search_locations is None:
        raise ImportError("no transformer_engine on sys.path")
    folder.mkdir()
    (folder / "transformer_engine").symlink_to(next(iter(found.submodule_search_locations)))
    (folder / f"{EXTENSION}.stand-in.so").touch()
    sys.path.insert(0, str(folder))
    os.environ["NVTE_PROJECT_BUILDING"] = "1"  # TE's own switch: load no shared library
    absent_packages.install(["flash_attn"])  # TE <= 1.11 asks for its version, and uses it on a GPU only
    importlib.util.spec_from_file_location = _answering(importlib.util.spec_from_file_location)
    torch.cuda.Stream = torch.cuda.Event = _NoStream


class _NoStream:
    """A CUDA stream or event of a machine without one: get_cpu_offload_context makes some with offloading off."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass


def _answering(original: Callable[..., ModuleSpec | None]) -> Callable[..., ModuleSpec | None]:
    def spec_from_file_location(name: str, *arguments: Any, **keywords: Any) -> ModuleSpec | None:
        return ModuleSpec(name, _Empty()) if name == EXTENSION else original(name, *arguments, **keywords)

    return spec_from_file_location


class _Empty(Loader):
    """Loads the stand-in."""

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return _Extension(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Do nothing: names are made as they are asked for."""


class _Extension(types.ModuleType):
    """Capitalised names are enumerations (DType.kFloat32), the others functions that refuse."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _Members(name, (), {}) if name[0].isupper() else _refusing(name)
        setattr(self, name, made)
        return made


class _Members(type):
    """A class that has every attribute it is asked for, each a number of its own."""

    def __getattr__(cls, name: str) -> int:
        if name.startswith("__"):
            raise AttributeError(name)
        value = len(vars(cls))
        setattr(cls, name, value)
        return value


def _refusing(name: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"{EXTENSION}.{name} is a stand-in: no compiled Transformer Engine here")

    return refuse
