"""Whether a kernel driver runs what an image holds: by itself, by the image's compat package, or not. Pure.

Facts: matrix/facts/drivers.toml and containers.toml. What they do not say is not claimed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from matrix.catalog import Catalog, Container, Driver
from matrix.outcome import Level
from matrix.planned import Planned
from matrix.versions import NONE, parse


class Fit(str, Enum):
    """How an image's CUDA meets a kernel driver."""

    NATIVE = "native"
    COMPAT = "compat"  # by the user-mode driver that the image brings along
    TOO_OLD = "too old"
    UNKNOWN = "unknown"  # no source was seen


@dataclass(frozen=True)
class Fitting:
    """The answer, and why."""

    fit: Fit
    reason: str


def fitting(catalog: Catalog, image: Container, driver: str) -> Fitting:
    """Say how an image runs on a kernel driver, a version (470.161.03) or a branch (470)."""
    if image.cuda is None:
        return Fitting(Fit.UNKNOWN, f"the CUDA of {image.id} is not known")
    branch, built = driver.split(".")[0], (image.cuda_driver_version_in_image or "").split(".")[0]
    if built and int(branch) >= int(built):
        return Fitting(Fit.NATIVE, f"{image.id} is built for driver {built}")
    known = next((one for one in catalog.drivers if one.branch == branch), None)
    if known is None:
        return Fitting(Fit.UNKNOWN, f"the catalog has no driver {branch}")
    return _older(image, image.cuda, driver, known)


def _older(image: Container, cuda: str, driver: str, known: Driver) -> Fitting:
    """Judge a driver that is older than the one that an image is built for."""
    major = parse(cuda).major
    if known.max_cuda_major_without_compat and major <= int(known.max_cuda_major_without_compat):
        return Fitting(Fit.NATIVE, f"driver {known.branch} runs every CUDA {major}")
    has = f"{image.id} has CUDA {cuda}"
    if known.too_old_for_cuda and cuda in known.too_old_for_cuda:
        return Fitting(Fit.TOO_OLD, f"{has}, for which its compat package does not work on driver {known.branch}")
    if known.compat_from and known.compat_cuda and cuda in known.compat_cuda:
        if "." in driver and parse(driver) < parse(known.compat_from):
            return Fitting(
                Fit.TOO_OLD, f"{has}, whose compat package needs {known.compat_from} of driver {known.branch}"
            )
        return Fitting(Fit.COMPAT, f"{has} and runs by its compat package; GPUs for data centers only")
    return Fitting(Fit.UNKNOWN, f"no source says whether driver {known.branch} runs CUDA {cuda}")


def enough(catalog: Catalog, image: Container) -> str:
    """Return the lowest branch of the catalog that runs an image by itself, "" where none is known to."""
    branches = sorted((driver.branch for driver in catalog.drivers), key=int)
    return next((branch for branch in branches if fitting(catalog, image, branch).fit is Fit.NATIVE), "")


def lack(catalog: Catalog, item: Planned, host: str) -> str:
    """Return why a case can't run for its driver's sake, and the branch that would do; "" where that is not known.

    The driver is the cell's, or `host`, the one that is there ("none" without one).
    """
    image, driver = catalog.bases.get(item.cell.base), _driver(item, host)
    if item.level is not Level.GPU or not isinstance(image, Container) or driver == NONE:
        return ""
    told = fitting(catalog, image, driver)
    if told.fit is not Fit.TOO_OLD:
        return ""
    would = enough(catalog, image)
    return (
        f"driver {driver} is too old: {told.reason}; {f'driver {would} would do' if would else 'none is known to do'}"
    )


def note(catalog: Catalog, item: Planned, host: str) -> str:
    """Return what the record of a case says of its driver: that it ran by an image's compat package; else ""."""
    image, driver = catalog.bases.get(item.cell.base), _driver(item, host)
    if item.level is not Level.GPU or not isinstance(image, Container) or driver == NONE:
        return ""
    told = fitting(catalog, image, driver)
    return f"driver {driver}: {told.reason}" if told.fit is Fit.COMPAT else ""


def _driver(item: Planned, host: str) -> str:
    return item.cell.driver if item.cell.driver != NONE else host
