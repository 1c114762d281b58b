from __future__ import annotations

import pytest

from matrix.ground.catalog.distributions import AttachedWheels, IndexedRelease, read_builds, read_distributions
from matrix.ground.catalog.schema import VersionText
from matrix.ground.catalog.stack import MCORE, TE, TORCH
from matrix.ground.catalog.versions import Range
from tests.unit.catalogs import real

WHEEL = IndexedRelease(
    "torch", VersionText("2.9.1"), wheel=True, pythons=("3.10", "3.12"), machines=("x86_64",), requires_python=">=3.10"
)


@pytest.mark.parametrize(
    ("python", "machine", "has"),
    [("3.12", "x86_64", True), ("3.12", "aarch64", False), ("3.11", "x86_64", False)],
)
def test_wheel_is_for_a_python_and_a_machine(python: str, machine: str, has: bool) -> None:
    assert WHEEL.has_wheel(python, machine) is has


def test_source_counts_for_every_python_that_is_declared() -> None:
    source = IndexedRelease("flash-attn", VersionText("2.8.3"), sdist=True, requires_python=">=3.9")
    assert source.has_python("3.15")
    assert not source.has_python("3.8")
    assert not source.has_wheel("3.12", "x86_64")
    assert not WHEEL.has_python("3.11")


def test_ranges_follow_markers_and_extras() -> None:
    requires = (
        "numpy<2",
        'triton==3.5.1; platform_system == "Linux"',
        'torch==2.9; extra == "gpu"',
        'a; sys_platform == "win32"',
    )
    release = IndexedRelease("verl", VersionText("0.9"), requires=requires)
    assert {name: str(limits) for name, limits in release.ranges("3.12").items()} == {
        "numpy": "<2",
        "triton": "==3.5.1",
    }
    assert str(release.ranges("3.12", ("gpu",))["torch"]) == "==2.9"


@pytest.mark.parametrize(
    ("version", "python", "torch", "cuda", "fits"),
    [
        ("2.8.3", "3.12", "2.8.0", "12.8", True),
        ("2.8.3", "3.12", "2.9.0", "12.8", False),
        ("2.8.3", "3.14", "2.8.0", "12.8", False),
        ("2.8.3", "3.12", "2.8.0", "13.0", False),
        ("2.7.0", "3.12", "2.8.0", "12.8", False),
    ],
)
def test_attached_wheel_fits_all_of_its_versions(version: str, python: str, torch: str, cuda: str, fits: bool) -> None:
    row = AttachedWheels("flash-attn", Range(">=2.8"), ("3.12",), (VersionText("2.8"),), "12", ("x86_64",), "")
    assert row.fits(version, python, torch, cuda) is fits


def test_recorded_releases_are_those_of_the_catalog() -> None:
    """A release that the catalog has on the index and the record lacks is one to renew."""
    recorded = read_distributions()
    for name, oldest in ((MCORE, "0.5.0"), (TE, "1.9.0"), (TORCH, "2.1.0")):
        versions = [str(release.version) for release in real().releases(name) if release.on_pypi]
        versions = versions[versions.index(oldest) :]
        assert [version for version in versions if recorded.of(name, version) is None] == []


def test_source_builds_state_what_they_need() -> None:
    builds = {row.package for row in read_builds().source_build}
    recorded = read_distributions()
    alone = {row.package for row in recorded.release if not row.wheel and row.package not in ("transformer-engine",)}
    frameworks = {package.name for package in recorded.package if package.framework}
    newest = {name for name in alone - frameworks if not [*recorded.by_package[name].values()][-1].wheel}
    assert newest <= builds
