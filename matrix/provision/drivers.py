"""The user-mode driver in records: which one the ranks load, and how an image runs on the host's driver. Pure."""

from __future__ import annotations

from matrix.catalog.failure import Level
from matrix.catalog.model import Catalog, Container
from matrix.catalog.versions import NONE
from matrix.planning.driver_fit import Fit, driver_of, fitting
from matrix.provision.nvidia.cuda import Cuda
from matrix.verdicts.planned import Planned


def found(cuda: Cuda, host: str, *, inside: bool) -> str:
    """Return the text of a record for the user-mode driver found, "" without one; `inside`: found in an image."""
    if cuda.version is None:
        return ""
    name = cuda.driver or f"CUDA {cuda.version}"
    compat = _is_compat(cuda, host)
    package = f"compat package{' of the image' if inside else ''}"
    return name if compat is None else f"{name} ({package if compat else 'the host driver itself'})"


def note(catalog: Catalog, item: Planned, host: str, cuda: Cuda | None) -> str:
    """Return the note on the driver in the record of a case; "" where no compat package is expected or found.

    It states how the image runs on the driver by the catalog, and the user-mode driver found. `cuda` is the driver
    found, None where it was not queried.
    """
    image, driver = catalog.bases.get(item.cell.base), driver_of(item, host)
    if item.level is not Level.GPU or not isinstance(image, Container) or driver == NONE:
        return ""
    expected = fitting(catalog, image, driver)
    compat = _is_compat(cuda, host) if cuda else None
    if compat is not True and expected.fit is not Fit.COMPAT:
        return ""
    measured = found(cuda, host, inside=True) if cuda else ""
    known = {Fit.COMPAT: True, Fit.NATIVE: False}.get(expected.fit)
    if compat is None:
        return f"driver {driver}: {expected.reason}; not measured"
    word = "found" if known in (compat, None) else "but found"
    return f"driver {driver}: {expected.reason}; {word}: {measured}"


def _is_compat(cuda: Cuda, host: str) -> bool | None:
    return cuda.is_compat(None if host == NONE else host)
