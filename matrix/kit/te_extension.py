"""A stand-in for Transformer Engine's compiled extension: every line of its Python is real, no kernel is.

Lets a rank without a GPU import the real transformer_engine.pytorch from an overlay (1.5 to 2.17), build modules and
run into what its Python raises. What would need the extension raises StandInError, so that nothing passes by it.
A record that used it says "stand-in: Transformer Engine's compiled extension".

TE's loader looks for transformer_engine_torch.*.so beside the package and loads it by path. So the package is linked
into a folder of the rank's own, next to an empty file of that name, and the loading of that one name is answered here.
TE <= 1.7 imports transformer_engine_extensions, asks pip where it is installed and loads a library from there: it finds
another, harmless one by that name.
Source of the list: transformer_engine/{common,pytorch}/__init__.py of 1.5 to 2.17.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, Final

from matrix.kit import absent_packages

NOTE: Final = "stand-in: Transformer Engine's compiled extension"
EXTENSION: Final = "transformer_engine_torch"
BEFORE_1_8: Final = "transformer_engine_extensions"  # what it was called up to 1.7
# With which TE defines kernels and exports at import (from 2.1 and 2.4 on) that no CPU ever runs.
DEFINITIONS: Final = ("triton", "onnx", "onnxscript")


class StandInError(NotImplementedError):
    """Something of the extension was used: TE's own Python has come as far as it gets without it."""


def install(folder: Path, answers: Mapping[str, Any] | None = None) -> None:
    """Make the transformer_engine on sys.path importable in this process; `folder` is the rank's own.

    `answers` are what functions of the extension return that say how it was built or what the device can do.
    Call it before torch's CUDA names are used by TE and before megatron.core is imported. Raises ImportError when no
    transformer_engine is on sys.path.
    """
    import torch
    import torch._dynamo  # it reads torch.cuda.Stream at import, so it must have seen the real one

    found = importlib.util.find_spec("transformer_engine")
    if found is None or found.submodule_search_locations is None:
        raise ImportError("no transformer_engine on sys.path")
    folder.mkdir()
    package = Path(next(iter(found.submodule_search_locations)))
    (folder / "transformer_engine").symlink_to(package)
    (folder / f"{EXTENSION}.stand-in.so").touch()
    (folder / "libtransformer_engine.so").symlink_to(torch._C.__file__)  # any library that is loaded already
    sys.path.insert(0, str(folder))
    os.environ["NVTE_PROJECT_BUILDING"] = "1"  # TE's own switch, from 1.8 on: load no shared library
    absent_packages.install(["flash_attn"])  # TE <= 1.11 asks for its version, and uses it on a GPU only
    sys.meta_path.append(_AnyFinder([name for name in DEFINITIONS if importlib.util.find_spec(name) is None]))
    stand_in = _Empty(answers or {}, package)
    importlib.util.spec_from_file_location = _answering(importlib.util.spec_from_file_location, stand_in)
    sys.modules[BEFORE_1_8] = stand_in.create_module(ModuleSpec(BEFORE_1_8, stand_in))
    subprocess.run = _located(subprocess.run, folder)
    torch.cuda.Stream = torch.cuda.Event = _NoStream


class _NoStream:
    """A CUDA stream or event of a machine without one: get_cpu_offload_context makes some with offloading off."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass


class _Anything(types.ModuleType):
    """What any expression may be made of: operators of an export that is never made, decorators that keep nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__version__":
            raise AttributeError(name)
        return absent_packages.VERSION if name == "__version__" else self

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self

    def __getitem__(self, _: Any) -> Any:
        return self


class _AnyFinder(MetaPathFinder, Loader):
    """Finds packages that are not there, and whatever is looked for in them."""

    def __init__(self, packages: Sequence[str]) -> None:
        self.packages = packages

    def find_spec(self, fullname: str, *_: Any) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname.partition(".")[0] in self.packages else None

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return _Anything(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Do nothing: there is no code."""


def _answering(original: Callable[..., ModuleSpec | None], loader: Loader) -> Callable[..., ModuleSpec | None]:
    def spec_from_file_location(name: str, *arguments: Any, **keywords: Any) -> ModuleSpec | None:
        return ModuleSpec(name, loader) if name == EXTENSION else original(name, *arguments, **keywords)

    return spec_from_file_location


def _located(original: Callable[..., Any], folder: Path) -> Callable[..., Any]:
    """Answer `pip show transformer_engine` (TE <= 1.7), also where there is no pip."""

    def run(command: Any, *arguments: Any, **keywords: Any) -> Any:
        if isinstance(command, list) and command[1:] == ["-m", "pip", "show", "transformer_engine"]:
            return subprocess.CompletedProcess(command, 0, stdout=f"Location: {folder}\n", stderr="")
        return original(command, *arguments, **keywords)

    return run


class _Empty(Loader):
    """Loads the stand-in."""

    def __init__(self, answers: Mapping[str, Any], package: Path) -> None:
        self.answers, self.package = answers, package

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        module = _Extension(spec.name)
        for name, answer in self.answers.items():
            setattr(module, name, lambda *_, answer=answer, **__: answer)
        module.__dict__["_package"] = self.package
        module.__dict__["__all__"] = ["FP8TensorMeta"]  # which 1.13 takes by `import *`
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Do nothing: names are made as they are asked for."""


class _Extension(types.ModuleType):
    """Capitalised names are enumerations (DType.kFloat32) or classes that can't be made, the others functions."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        full = f"{self.__name__}.{name}"
        made: Any = _Members(full, (), {}) if name[0].isupper() else _refusing(full)
        if name == "DType":  # TE >= 2.17 checks at import that it has the members of its own
            made.__members__ = _declared(self._package / "pytorch" / "constants.py", name)
        setattr(self, name, made)
        return made


class _Members(type):
    """A class that has every attribute it is asked for, each a number of its own, and no instances."""

    def __getattr__(cls, name: str) -> int:
        if name.startswith("__"):
            raise AttributeError(name)
        value = len(vars(cls))
        setattr(cls, name, value)
        return value

    def __call__(cls, *_: Any, **__: Any) -> Any:
        _refusing(cls.__name__)()


def _declared(file: Path, name: str) -> list[str]:
    """Return the members of an enumeration as a Python file declares it, [] where it does not."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return [target.id for one in node.body if isinstance(one, ast.Assign) for target in one.targets]  # type: ignore[attr-defined]  # members are plain names
    return []


def _refusing(name: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise StandInError(f"{name} is a stand-in: no compiled Transformer Engine here")

    return refuse
