"""A stand-in for Transformer Engine's compiled extension: TE's Python is real, its kernels are missing.

A rank without a GPU can import the real transformer_engine.pytorch from an overlay (1.5 to 2.20), build modules and
run into the exceptions of TE's Python. Every use of the extension raises StandInError, so that no case passes because
of the stand-in. A record that used it notes "stand-in: Transformer Engine's compiled extension".

TE's loader searches transformer_engine_torch.*.so next to the package and loads it by path. The stand-in links the
package into a folder of the rank, next to an empty file of that name, and intercepts the loading of that name.
TE <= 1.7 imports transformer_engine_extensions, finds its folder with pip and loads a library from there: it finds
another, harmless one by that name.
Source of the list: transformer_engine/{common,pytorch}/__init__.py of 1.5 to 2.19.
"""

from __future__ import annotations

import ast
import importlib
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

EXTENSION: Final = "transformer_engine_torch"
BEFORE_1_8: Final = "transformer_engine_extensions"  # its name up to 1.7
# Packages with which TE (from 2.1 and 2.4 on) defines kernels and exports at import; no CPU runs these.
DEFINITIONS: Final = ("triton", "onnx", "onnxscript")
# Enumerations of the extension whose members TE compares at import (from 2.17, 2.19 on) with a class of its own: the
# file and the name of that class, and what each member's name has before it in the extension.
ENUMERATIONS: Final = {
    "DType": ("pytorch/constants.py", "DType", ""),
    "NVTE_Fused_Attn_Backend": ("pytorch/cpp_extensions/fused_attn.py", "FusedAttnBackend", "NVTE_"),
}


ANSWERS: Final = {"get_cudnn_version": 91_200}  # 9.12.0, the least with which TE 2.20 can be imported
NO_GPU: Final = types.SimpleNamespace(name="stand-in", major=0, minor=0)


class StandInError(NotImplementedError):
    """TE's Python used the extension, which is missing: it can't run any further."""


def compiled(found: ModuleSpec) -> bool:
    """Return whether a transformer_engine has its extension, as an overlay that was built has."""
    return any(any(Path(folder).glob(f"{EXTENSION}*.so")) for folder in found.submodule_search_locations or ())


def link(folder: Path) -> Path:
    """Link the package transformer_engine into a folder, without its metadata; return the package's own folder.

    Raises ImportError when no transformer_engine is on sys.path.
    """
    spec = importlib.util.find_spec("transformer_engine")
    if spec is None or spec.submodule_search_locations is None:
        raise ImportError("no transformer_engine on sys.path")
    package = Path(next(iter(spec.submodule_search_locations)))
    (folder / "transformer_engine").symlink_to(package)
    return package


def install(folder: Path, answers: Mapping[str, Any] | None = None, kernels: Mapping[str, Any] | None = None) -> None:
    """Make the transformer_engine on sys.path importable in this process; `folder` is a new folder of the rank.

    `answers` maps functions of the extension, those that report its build or the device's capabilities, to their
    results, `kernels` its other names to what computes. Call it before TE uses torch's CUDA names and before
    megatron.core is imported. Raises ImportError when no transformer_engine is on sys.path.
    """
    import torch
    import torch._dynamo  # it reads torch.cuda.Stream at import, which must still be the real one

    folder.mkdir()
    package = link(folder)
    (folder / f"{EXTENSION}.stand-in.so").touch()
    (folder / "libtransformer_engine.so").symlink_to(torch._C.__file__)  # any library that is already loaded
    sys.path.insert(0, str(folder))
    os.environ["NVTE_PROJECT_BUILDING"] = "1"  # TE's own switch, from 1.8 on: load no shared library
    absent_packages.install(["flash_attn"])  # TE <= 1.11 reads its version, and uses it only on a GPU
    _replace_driver()
    sys.meta_path.append(AnyFinder([name for name in DEFINITIONS if importlib.util.find_spec(name) is None]))
    stand_in = _Empty(answers or {}, kernels or {}, package)
    importlib.util.spec_from_file_location = _answering(importlib.util.spec_from_file_location, stand_in)
    sys.modules[BEFORE_1_8] = stand_in.create_module(ModuleSpec(BEFORE_1_8, stand_in))
    subprocess.run = _located(subprocess.run, folder)
    torch.cuda.Stream = torch.cuda.Event = _NoStream
    if not torch.cuda.is_available():  # nor claimed to be
        torch.cuda.get_device_properties = _none_at_import(torch.cuda.get_device_properties)


def _replace_driver() -> None:
    """Replace the active driver of the base's triton, which needs a GPU: TE 2.1 and 2.2 tune kernels at import.

    Before triton 2.3, that of torch 2.3, there is none to replace.
    """
    if importlib.util.find_spec("triton"):
        driver = importlib.import_module("triton.runtime").driver
        if hasattr(driver, "set_active"):
            driver.set_active(_Anything("driver"))


def _none_at_import(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return torch's function, which reports a GPU of no capability to a function that a module calls at import.

    TE 1.11 compares the capability there, where flashattn-hopper is not installed.
    """

    def properties(*arguments: Any) -> Any:
        return NO_GPU if sys._getframe(2).f_code.co_name == "<module>" else original(*arguments)

    return properties


class _NoStream:
    """Replaces CUDA streams and events: get_cpu_offload_context creates some even with offloading off."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass


class _Anything(types.ModuleType):
    """A module that supports any expression: operators of an export that never runs, decorators without effect."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__version__":
            raise AttributeError(name)
        return absent_packages.VERSION if name == "__version__" else self

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self

    def __getitem__(self, _: Any) -> Any:
        return self


class AnyFinder(MetaPathFinder, Loader):
    """Import hook for absent packages and every module in them."""

    def __init__(self, packages: Sequence[str]) -> None:
        self.packages = packages

    def find_spec(self, fullname: str, *_: Any) -> ModuleSpec | None:
        """Return a spec for these packages and every module in them."""
        return ModuleSpec(fullname, self, is_package=True) if fullname.partition(".")[0] in self.packages else None

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        """Return a module with any name."""
        return _Anything(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Do nothing: there is no code."""


def _answering(original: Callable[..., ModuleSpec | None], loader: Loader) -> Callable[..., ModuleSpec | None]:
    def spec_from_file_location(name: str, *arguments: Any, **keywords: Any) -> ModuleSpec | None:
        return ModuleSpec(name, loader) if name == EXTENSION else original(name, *arguments, **keywords)

    return spec_from_file_location


def _located(original: Callable[..., Any], folder: Path) -> Callable[..., Any]:
    """Return subprocess.run with the result of `pip show transformer_engine` (TE <= 1.7), also without pip."""

    def run(command: Any, *arguments: Any, **keywords: Any) -> Any:
        if isinstance(command, list) and command[1:] == ["-m", "pip", "show", "transformer_engine"]:
            return subprocess.CompletedProcess(command, 0, stdout=f"Location: {folder}\n", stderr="")
        return original(command, *arguments, **keywords)

    return run


class _Empty(Loader):
    """Loader of the stand-in."""

    def __init__(self, answers: Mapping[str, Any], kernels: Mapping[str, Any], package: Path) -> None:
        constants = {name: lambda *_, answer=answer, **__: answer for name, answer in {**ANSWERS, **answers}.items()}
        self.functions, self.package = {**constants, **kernels}, package

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        module = _Extension(spec.name)
        for name, function in self.functions.items():
            setattr(module, name, function)
        module.__dict__["_package"] = self.package
        module.__dict__["__all__"] = ["FP8TensorMeta", *self.functions]  # for `import *`: 1.13 uses the first
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Do nothing: the module creates its names on access."""


class _Extension(types.ModuleType):
    """Capitalised names are enumerations (DType.kFloat32) or classes without instances, the others are functions."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        full = f"{self.__name__}.{name}"
        stand_in: Any = _Members(full, (), {}) if name[0].isupper() else _refusing(full)
        if name in ENUMERATIONS:
            file, declared, prefix = ENUMERATIONS[name]
            stand_in.__members__ = [prefix + member for member in _declared(self._package / file, declared)]
        setattr(self, name, stand_in)
        return stand_in


class _Members(type):
    """A class with any attribute, each with a different number, and without instances."""

    def __getattr__(cls, name: str) -> int:
        if name.startswith("__"):
            raise AttributeError(name)
        value = len(vars(cls))
        setattr(cls, name, value)
        return value

    def __call__(cls, *_: Any, **__: Any) -> Any:
        _refusing(cls.__name__)()


def _declared(file: Path, name: str) -> list[str]:
    """Return the members of an enumeration that a Python file declares, [] where it does not."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body if file.exists() else ():
        if isinstance(node, ast.ClassDef) and node.name == name:
            targets = [target for member in node.body if isinstance(member, ast.Assign) for target in member.targets]
            return [target.id for target in targets if isinstance(target, ast.Name)]
    return []


def _refusing(name: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise StandInError(f"{name} is a stand-in: no compiled Transformer Engine")

    return refuse
