"""Small Transformer Engines and Megatrons, given as source text."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from matrix.ground.catalog.versions import parse
from matrix.read.api import consuming, offering
from matrix.read.api.api import Absent, Surface
from matrix.read.api.comparison import find
from matrix.read.api.finding import Finding, fits, places
from matrix.read.api.provider import MEGATRON_CORE, TORCH, Calls, Provider, Use

ROOT = """
try:
    from . import pytorch
except ImportError:
    pass
__version__ = str(version("transformer_engine"))
"""
UTILS = '''
from importlib.metadata import version
from packaging.version import Version as PkgVersion
_te_version = None
def get_te_version():
    def get_te_version_str():
        import transformer_engine as te
        if hasattr(te, '__version__'):
            return str(te.__version__)
        else:
            return version("transformer-engine")
    global _te_version
    if _te_version is None:
        _te_version = PkgVersion(get_te_version_str())
    return _te_version
def is_te_min_version(version, check_equality=True):
    """Check if minimum version of `transformer-engine` is installed."""
    if check_equality:
        return get_te_version() >= PkgVersion(version)
    return get_te_version() > PkgVersion(version)
'''


def te(files: Mapping[str, str] | str, version: str = "1.9.0") -> Surface:
    """Return a TE with these files under transformer_engine/; a string is pytorch/__init__.py."""
    own = {"pytorch/__init__.py": files} if isinstance(files, str) else files
    full = {"__init__.py": ROOT, "pytorch/__init__.py": "", **own}
    return offering.read_offering(
        {f"transformer_engine/{path}": textwrap.dedent(text).encode() for path, text in full.items()}, version
    )


def mcore(files: Mapping[str, str] | str, version: str = "0.9.0") -> Calls:
    """Return a Megatron with these files under megatron/core/ and the utils of core 0.9; a string is adapter.py."""
    own = {"adapter.py": files} if isinstance(files, str) else files
    full = {"__init__.py": "", "utils.py": UTILS, **own}
    return consuming.read_calls(
        {f"megatron/core/{path}": textwrap.dedent(text).encode() for path, text in full.items()}, version
    )


def core(files: Mapping[str, str], version: str = "0.16.0") -> Surface:
    """Return the API of a megatron-core with these files under megatron/core/."""
    full = {
        "megatron/core/__init__.py": "__version__ = ''\n",
        **{f"megatron/core/{path}": text for path, text in files.items()},
    }
    return offering.read_offering(_encoded(full), version, provider=MEGATRON_CORE)


def torch(files: Mapping[str, str], version: str = "2.6.0") -> Surface:
    """Return the API of a torch with these files under torch/distributed/."""
    full = {"torch/distributed/__init__.py": "", **{f"torch/distributed/{path}": text for path, text in files.items()}}
    return offering.read_offering(_encoded(full), version, provider=TORCH)


def used_torch(files: Mapping[str, str], *used: str, version: str = "2.6.0") -> Surface:
    """Return what is recorded of a torch with these files under torch/, of which some paths are used."""
    full = {"torch/__init__.py": "", **{f"torch/{path}": text for path, text in files.items()}}
    return offering.read_offering(_encoded(full), version, provider=TORCH, used=used)


def project(files: Mapping[str, str] | str, provider: Provider = MEGATRON_CORE) -> Calls:
    """Return the calls of a project with these files into a provider; a string is train.py."""
    own = {"train.py": files} if isinstance(files, str) else files
    return consuming.read_calls(_encoded(own), "fork", provider=provider, consumer="fork", part=lambda path: True)


def _encoded(files: Mapping[str, str]) -> dict[str, bytes]:
    return {path: textwrap.dedent(text).encode() for path, text in files.items()}


def broken(calls: str | Calls, offered: str | Surface, version: str = "1.9.0") -> list[tuple[str, str]]:
    """Return the findings as (kind, message)."""
    return [(f.kind.value, f.message) for f in findings(calls, offered, version)]


def findings(calls: str | Calls, offered: str | Surface, version: str = "1.9.0") -> list[Finding]:
    """Return the findings between two sides, each a string or read already, without those behind another one."""
    consumer = mcore(calls) if isinstance(calls, str) else calls
    found = find(consumer, te(offered) if isinstance(offered, str) else offered, version)
    return [finding for finding in found if not finding.masked]


class Past:
    """Releases given as surfaces."""

    def __init__(self, *surfaces: Surface) -> None:
        self._surfaces = surfaces

    def lacked(self, path: str) -> bool:
        return all(isinstance(surface.lookup(path), Absent) for surface in self._surfaces)

    def offered(self, path: str) -> bool:
        return any(surface.offers(path) for surface in self._surfaces)

    def fitted(self, use: Use) -> bool:
        return any(fits(use, surface) for surface in self._surfaces)

    def taken(self, path: str, parameter: str) -> bool:
        return any(surface.takes(path, parameter) for surface in self._surfaces)

    def placed(self, path: str, position: int, parameter: str) -> bool:
        return any(places(surface, path, position, parameter) for surface in self._surfaces)

    def had_before(self, path: str, version: str) -> bool:
        return any(surface.offers(path) for surface in self._surfaces if parse(surface.version) < parse(version))


def breaks(calls: Calls, surface: Surface, *others: Surface) -> Sequence[tuple[str, str]]:
    """Return the findings as (kind, message), with the other releases of the provider as history."""
    return [(finding.kind.value, finding.message) for finding in find(calls, surface, history=Past(surface, *others))]
