"""What the index has of packages, and what a base needs to build a release of Transformer Engine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from matrix.ground.catalog import distributions
from matrix.ground.catalog.distributions import AttachedWheels, IndexedRelease, read_builds, read_distributions
from matrix.ground.catalog.machine import Compiled, Toolkit
from matrix.ground.catalog.schema import VersionText
from matrix.ground.catalog.stack import MCORE, TE, TORCH
from matrix.ground.catalog.versions import Range, parse
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


CUDA_12, CUDA_13 = Toolkit("12.4", "12.1", "2.4.0"), Toolkit("13.0", "13.0", "2.11.0+cu130")


@pytest.mark.parametrize(
    ("te", "toolkit", "reason"),
    [
        ("1.8.0", CUDA_12, "the package index has no source of its extension: --compile builds"),
        ("2.0.0", CUDA_12, "the package index has no source of its extension: --compile builds"),
        ("1.9.0", CUDA_12, ""),
        ("1.13.0", CUDA_12, ""),
        ("2.9.0", CUDA_13, ""),
        ("2.18.0", CUDA_13, ""),
        ("2.18.0", Toolkit("none", "13.0", "2.11.0"), "no nvcc builds it here; fix: install CUDA's toolkit 13 and"),
        ("2.18.0", Toolkit("none"), "no nvcc builds it here; fix: install the toolkit of its torch's CUDA and"),
        ("2.18.0", replace(CUDA_12, nvcc="none"), "it imports torch.distributed.fsdp._fully_shard"),  # nor with nvcc
        ("2.8.0", replace(CUDA_13, nvcc="none"), "no library of it for CUDA 13"),
        ("2.18.0", Toolkit("13.0", "none", "2.13.0+cpu"), "torch here is built without CUDA"),
        ("2.18.0", Toolkit("13.0", "12.8", "2.9.1"), "nvcc is of CUDA 13.0, torch of 12.8; fix: set CUDA_HOME"),
        ("2.8.0", CUDA_13, "no library of it for CUDA 13"),
        ("1.9.0", Toolkit("12.4", "12.6", "2.9.1"), "it imports torch.onnx._type_utils"),
        ("1.9.0", Toolkit("13.0", "13.0", "2.11.0"), "it imports torch.onnx._type_utils"),
        ("2.6.0", CUDA_12, "its library for CUDA 12 needs libcublas.so.13"),
        ("2.18.0", CUDA_12, "it imports torch.distributed.fsdp._fully_shard"),
        ("2.9.0", CUDA_12, ""),
        ("2.18.0", Toolkit(), ""),  # what is unknown makes no case unavailable
        ("2.18.0", Toolkit("13.0"), ""),
        ("2.18.0", Toolkit(None, "13.0", "2.11.0"), ""),
    ],
)
def test_base_builds_a_release_or_lacks_something(te: str, toolkit: Toolkit, reason: str) -> None:
    lack = distributions.build_lack(te, toolkit)
    assert reason in lack
    assert bool(reason) == bool(lack)


@pytest.mark.parametrize(
    ("te", "cuda", "package"),
    [
        ("1.9.0", "12.1", "transformer-engine-cu12"),
        ("2.20.2", "12.8", "transformer-engine-cu12"),
        ("2.9.0", "13.0", "transformer-engine-cu13"),
        ("2.8.0", "13.0", ""),
        ("2.18.0", "14.0", ""),
    ],
)
def test_library_is_that_of_torchs_cuda(te: str, cuda: str, package: str) -> None:
    assert distributions.library(te, cuda) == package


def test_a_build_needs_wheels_and_tools() -> None:
    wheels = distributions.requirements("2.18.0", "13.0")
    assert wheels[:2] == ("transformer-engine==2.18.0", "transformer-engine-cu13==2.18.0")
    assert {tool.partition(">")[0] for tool in distributions.te_builds().extension.tools} == {
        "pip",
        "setuptools",
        "wheel",
        "ninja",
        "pybind11",
    }


@pytest.mark.parametrize(
    ("te", "declared"),
    [
        ("1.9.0", ()),  # flash-attn has no wheel
        ("2.1.0", ()),
        ("2.2.0", ("einops",)),
        ("2.5.0", ("einops",)),
        ("2.7.0", ("einops", "onnx", "onnxscript==0.3.1")),
        ("2.9.0", ("einops", "onnx", "onnxscript")),
    ],
)
def test_a_build_needs_what_its_extension_declares(te: str, declared: tuple[str, ...]) -> None:
    assert distributions.requirements(te, "12.4")[2:] == declared


@pytest.mark.parametrize(
    ("te", "sms", "value"),
    [
        ("1.9.0", ("9.0",), "90"),
        ("2.3.0", ("10.0", "9.0", "9.0"), "90;100"),
        ("2.3.0", (), ""),
        ("2.4.0", ("9.0",), ""),  # C++ alone: one build for every GPU
    ],
)
def test_architectures_count_for_cuda_sources(te: str, sms: tuple[str, ...], value: str) -> None:
    assert distributions.architectures(te, sms) == value


@pytest.mark.parametrize(("cores", "gib", "jobs"), [(16, 126, 16), (16, 24, 8), (2, 24, 2), (8, 2, 1), (4, None, 4)])
def test_jobs_fit_cores_and_memory(cores: int, gib: int | None, jobs: int) -> None:
    assert distributions.jobs(cores, gib * 2**30 if gib else None) == jobs


@pytest.mark.parametrize(("te", "jobs", "minutes"), [("1.10.0", 5, 2.0), ("2.4.0", 1, 3.0), ("2.20.2", 2, 1.5)])
def test_minutes_are_those_of_one_core_shared(te: str, jobs: int, minutes: float) -> None:
    assert distributions.minutes(te, jobs) == minutes


@pytest.mark.parametrize(
    ("te", "toolkit", "answer"),
    [
        ("1.9.0", Toolkit("none", "12.1", "2.4.0"), True),
        ("1.9.0", Toolkit("none", "12.1", "2.4.0+cu121"), True),  # of torch's own index
        ("1.9.0", Toolkit(None, None, "2.4.0"), True),  # an environment that is not made yet
        ("1.10.0", Toolkit("none", "12.1", "2.4.0"), False),
        ("1.9.0", Toolkit("none", "12.4", "2.4.0"), False),
        ("1.9.0", Toolkit("none", "12.1", "2.4.1"), False),
        ("1.9.0", Toolkit("none", "12.1", "2.4.0a0+3bcc3cddb5"), False),  # of an image
        ("1.9.0", None, False),
    ],
)
def test_extension_is_for_one_torch(te: str, toolkit: Toolkit | None, answer: bool) -> None:
    assert distributions.is_compiled(te, toolkit, (Compiled("1.9.0", "2.4.0", "12.1"),)) is answer


def test_every_release_in_the_index_has_a_source() -> None:
    """The recorded range is the releases that the catalog lists as being in the index."""
    listed = [release.version for release in real().transformer_engine if release.on_pypi]
    assert listed
    assert [te for te in listed if te not in distributions.te_builds().extension.versions] == []
    assert all(distributions.library(te, "12.8") for te in listed)
    assert not distributions.library(max(listed, key=parse), "11.8")
