"""Stand-ins for compiled CUDA packages that upstream imports although a reproduction never uses them.

megatron-core <= 0.7 imports transformer_engine and apex unconditionally, also for a model of its own layers. The
catalog holds which release needs which package (`[[stand_in]]` of a failure); the record of a case that ran with a
stand-in notes it.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import sys
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

VERSION: Final = "0"  # the version of a stand-in: below every release, so that version guards are false


def install(
    packages: Iterable[str] = (), missing: Iterable[str] = (), provided: Mapping[str, str] | None = None
) -> None:
    """Make each absent package of `packages` importable in this process; an installed package is not replaced.

    `missing` names submodules that can still not be imported: upstream has a workaround for their absence, which must
    run. `provided` maps a name that upstream really uses ("package.module.Name") to its substitute ("module:Name").
    """
    for package in packages:
        if importlib.util.find_spec(package) is None:
            sys.modules.pop(package, None)  # a hidden package is None there; remove it before the stand-in is imported
            sys.meta_path.insert(0, AbsentPackage(package, frozenset(missing)))
            for name, target in (provided or {}).items():
                if name.startswith(package + "."):
                    module, _, attribute = name.rpartition(".")
                    source, _, item = target.partition(":")
                    setattr(importlib.import_module(module), attribute, getattr(importlib.import_module(source), item))


class AbsentPackage(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Import hook for one package: every name in it can be imported and subclassed, but not used.

    Names in lower case are submodules, others are classes; creating an instance raises RuntimeError, so that no case
    passes because of a stand-in.
    """

    def __init__(self, package: str, missing: frozenset[str]) -> None:
        self.package, self.missing = package, missing

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return a spec for the package and for every module in it; raise ModuleNotFoundError for a missing one."""
        if fullname in self.missing:
            raise ModuleNotFoundError(f"{fullname} is left out of the stand-in for {self.package}", name=fullname)
        if fullname == self.package or fullname.startswith(self.package + "."):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """Return a module that creates its names on access."""
        return AbsentModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Do nothing: there is no code."""

    def find_distributions(
        self, context: importlib.metadata.DistributionFinder.Context
    ) -> Iterable[importlib.metadata.Distribution]:
        """Yield the stand-in's distribution: upstream reads its version at import with importlib.metadata."""
        if context.name is not None and context.name.replace("-", "_") == self.package:
            yield AbsentDistribution(self.package)


class AbsentModule(types.ModuleType):
    """A module of a stand-in; see AbsentPackage."""

    __version__ = VERSION

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        full = f"{self.__name__}.{name}"
        return importlib.import_module(full) if name.islower() else AbsentClass(full, (), {"__init__": _refuse})


class AbsentClass(type):
    """The metaclass of a stand-in's classes: their attributes (`_SplitAlongDim.apply`) can be read, not called."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _refuse


def _refuse(*_: Any, **__: Any) -> None:
    raise RuntimeError("a compiled package is missing; its stand-in can be imported, not used")


class AbsentDistribution(importlib.metadata.Distribution):
    """The metadata of a stand-in: a name and a version."""

    def __init__(self, package: str) -> None:
        self.package = package

    def read_text(self, filename: str) -> str | None:
        """Return the content of METADATA, None for any other file."""
        return f"Metadata-Version: 2.1\nName: {self.package}\nVersion: {VERSION}\n" if filename == "METADATA" else None

    def locate_file(self, path: str | os.PathLike[str]) -> Any:
        """Raise FileNotFoundError: a stand-in has no files."""
        raise FileNotFoundError(path)
