"""Decide whether a kernel driver runs the CUDA of an image: directly, with the image's compat package, or not. Pure.

Facts come from matrix/ground/catalog/facts/drivers.toml and containers.toml; without a fact the answer is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.machine import Cuda
from matrix.ground.catalog.model import Catalog, Container, Driver
from matrix.ground.catalog.stack import ABSENT, CUDA, DRIVER, TOOLKIT, Stack
from matrix.ground.catalog.versions import NONE, parse
from matrix.ground.verdicts.planned import Planned


class Fit(str, Enum):
    """How an image's CUDA runs on a kernel driver."""

    NATIVE = "native"
    COMPAT = "compat"  # with the user-mode driver of the image
    TOO_OLD = "too old"
    UNKNOWN = "unknown"  # the catalog has no source


@dataclass(frozen=True)
class Fitting:
    """The result, with its reason."""

    fit: Fit
    reason: str


def fit_of(catalog: Catalog, stack: Stack) -> Fitting | None:
    """Return how the CUDA of a stack, of its image or of its wheels, runs on its driver; None without one of them."""
    image, driver, cuda = catalog.container_in(stack), stack.version(DRIVER), stack.version(CUDA)
    if driver and cuda and stack[TOOLKIT] is ABSENT:
        return wheels_fitting(catalog, cuda, driver)
    return fitting(catalog, image, driver) if image and driver else None


def wheels_fitting(catalog: Catalog, cuda: str, driver: str) -> Fitting:
    """Return how the CUDA of wheels, which have no compat package, runs on a kernel driver."""
    branch, most = driver.split(".")[0], None
    for facts in catalog.drivers:
        most = facts.max_cuda_major_without_compat if facts.branch == branch else most
    if most is None:
        return Fitting(Fit.UNKNOWN, f"no source states whether driver {branch} runs CUDA {cuda}")
    runs = parse(cuda).major <= int(most)
    reason = f"driver {branch} runs every CUDA up to {most}"
    return Fitting(Fit.NATIVE, reason) if runs else Fitting(Fit.TOO_OLD, f"{reason}; wheels have no compat package")


def fitting(catalog: Catalog, image: Container, driver: str) -> Fitting:
    """Return how an image runs on a kernel driver, given as a version (470.161.03) or a branch (470)."""
    least = image.least_branch
    if least and int(driver.split(".")[0]) < least:
        return Fitting(Fit.TOO_OLD, f"{image.id} requires driver {least} or later")
    if image.cuda is None:
        return Fitting(Fit.UNKNOWN, f"the CUDA of {image.id} is not known")
    branch, built = driver.split(".")[0], (image.cuda_driver_version_in_image or "").split(".")[0]
    if built and int(branch) >= int(built):
        return Fitting(Fit.NATIVE, f"{image.id} is built for driver {built}")
    facts = next((facts for facts in catalog.drivers if facts.branch == branch), None)
    if facts is None:
        return Fitting(Fit.UNKNOWN, f"the catalog has no driver {branch}")
    return _older(image, image.cuda, driver, facts)


def _older(image: Container, cuda: str, driver: str, facts: Driver) -> Fitting:
    """Return how an image runs on a driver older than the one that it is built for."""
    major = parse(cuda).major
    if facts.max_cuda_major_without_compat and major <= int(facts.max_cuda_major_without_compat):
        return Fitting(Fit.NATIVE, f"driver {facts.branch} runs every CUDA {major}")
    has = f"{image.id} has CUDA {cuda}"
    if facts.too_old_for_cuda and cuda in facts.too_old_for_cuda:
        return Fitting(Fit.TOO_OLD, f"{has}, for which its compat package does not work on driver {facts.branch}")
    if facts.compat_from and facts.compat_cuda and cuda in facts.compat_cuda:
        if "." in driver and parse(driver) < parse(facts.compat_from):
            return Fitting(
                Fit.TOO_OLD, f"{has}, whose compat package needs {facts.compat_from} of driver {facts.branch}"
            )
        return Fitting(Fit.COMPAT, f"{has} and runs by its compat package; GPUs for data centers only")
    return Fitting(Fit.UNKNOWN, f"no source states whether driver {facts.branch} runs CUDA {cuda}")


def minimum_driver(catalog: Catalog, of: Container | str) -> str:
    """Return the lowest branch of the catalog that runs an image, or a CUDA of wheels, directly; "" without one."""
    branches = sorted((driver.branch for driver in catalog.drivers), key=int)
    fits = wheels_fitting if isinstance(of, str) else fitting
    return next((branch for branch in branches if fits(catalog, of, branch).fit is Fit.NATIVE), "")  # type: ignore[arg-type]


def lack(catalog: Catalog, item: Planned, host: str) -> str:
    """Return why a case can't run on its driver, with a branch that would do; "" unless it is known not to run.

    The driver is `host`, that of the machine; where that is "none", it is the cell's.
    """
    driver = driver_of(item, host)
    return "" if driver == NONE else _runnable(catalog, item, [driver])[1]


def runnable(catalog: Catalog, item: Planned, drivers: Iterable[str]) -> tuple[tuple[str, ...], str]:
    """Return the branches among `drivers` (versions or branches) that a case may use, or the reason why there is none.

    These are the branches known to run the case's image, directly or with its compat package, lowest first; if
    there are none, the branches for which the catalog has no answer. If the cell names a driver, no other counts. No
    branch and no reason: any driver will do.
    """
    driver = item.cell.stack.version(DRIVER)
    return _runnable(catalog, item, [driver] if driver else sorted(drivers, key=parse))


def _runnable(catalog: Catalog, item: Planned, drivers: Sequence[str]) -> tuple[tuple[str, ...], str]:
    image = catalog.bases.get(item.cell.base)
    if item.level is not Level.GPU:
        return (), ""
    if not isinstance(image, Container):
        requested = item.cell.stack.version(DRIVER)
        return ((requested.split(".")[0],) if requested else ()), ""
    fits = {driver: fitting(catalog, image, driver) for driver in drivers}
    for accepted in ((Fit.NATIVE, Fit.COMPAT), (Fit.UNKNOWN,)):
        if branches := dict.fromkeys(driver.split(".")[0] for driver in drivers if fits[driver].fit in accepted):
            return tuple(branches), ""
    return (), _too_old(drivers, fits[drivers[-1]], minimum_driver(catalog, image)) if drivers else ""


def _too_old(drivers: Sequence[str], newest: Fitting, would: str) -> str:
    """Return the reason why no driver will do: the newest one's, with a branch that would do."""
    several = len(drivers) > 1
    return (
        f"driver{'s' * several} {' and '.join(drivers)} {'are' if several else 'is'} too old: {newest.reason}; "
        f"{f'driver {would} would do' if would else 'none is known to do'}"
    )


def branches(features: Iterable[str]) -> tuple[str, ...]:
    """Return the driver branches among a cluster's node features, lowest first: 535 for driver535."""
    numbers = {match[1] for feature in features if (match := re.fullmatch(r"driver(\d+)", feature))}
    return tuple(sorted(numbers, key=int))


def driver_of(item: Planned, host: str | None) -> str:
    """Return the driver of a case: the machine's, or the cell's where that is "none" or unknown."""
    return host if host and host != NONE else str(item.cell.stack[DRIVER])


def user_mode_driver(cuda: Cuda, host: str | None, *, inside: bool) -> str:
    """Return the text of a record for the user-mode driver that the ranks load, "" without one.

    `host` is the kernel driver, `inside`: the user-mode driver was found in an image.
    """
    if cuda.version is None:
        return ""
    name, compat = cuda.driver or f"CUDA {cuda.version}", cuda.is_compat(None if host == NONE else host)
    package = f"compat package{' of the image' if inside else ''}"
    return name if compat is None else f"{name} ({package if compat else 'the host driver itself'})"


def driver_note(catalog: Catalog, item: Planned, host: str | None, cuda: Cuda | None) -> str:
    """Return the note on the driver in the record of a case; "" where no compat package is expected or found.

    It states how the image runs on the driver by the catalog, and the user-mode driver found. `cuda` is the driver
    found, None where it was not queried.
    """
    image, driver = catalog.bases.get(item.cell.base), driver_of(item, host)
    if item.level is not Level.GPU or not isinstance(image, Container) or driver == NONE:
        return ""
    expected = fitting(catalog, image, driver)
    compat = cuda.is_compat(None if host == NONE else host) if cuda else None
    if compat is not True and expected.fit is not Fit.COMPAT:
        return ""
    if cuda is None or compat is None:
        return f"driver {driver}: {expected.reason}; not measured"
    predicted = {Fit.COMPAT: True, Fit.NATIVE: False}.get(expected.fit, compat)
    word = "found" if predicted is compat else "but found"
    return f"driver {driver}: {expected.reason}; {word}: {user_mode_driver(cuda, host, inside=True)}"
