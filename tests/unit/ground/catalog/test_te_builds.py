"""Which releases of Transformer Engine a base can build, from what, with which settings."""

from __future__ import annotations

import pytest

from matrix.ground.catalog import te_builds
from matrix.ground.catalog.te_builds import Toolkit
from matrix.ground.catalog.versions import parse
from tests.unit.catalogs import real

CUDA_12, CUDA_13 = Toolkit("12.4", "12.1", "2.4.0"), Toolkit("13.0", "13.0", "2.11.0+cu130")


@pytest.mark.parametrize(
    ("te", "toolkit", "reason"),
    [
        ("1.8.0", CUDA_12, "the package index has no transformer-engine-torch 1.8.0"),
        ("1.9.0", CUDA_12, ""),
        ("1.13.0", CUDA_12, ""),
        ("2.9.0", CUDA_13, ""),
        ("2.18.0", CUDA_13, ""),
        ("2.18.0", Toolkit("none", "13.0", "2.11.0"), "no nvcc builds it here; fix: install CUDA's toolkit 13 and"),
        ("2.18.0", Toolkit("none"), "no nvcc builds it here; fix: install the toolkit of its torch's CUDA and"),
        ("2.18.0", Toolkit("13.0", "none", "2.13.0+cpu"), "torch here is built without CUDA"),
        ("2.18.0", Toolkit("13.0", "12.8", "2.9.1"), "nvcc is of CUDA 13.0, torch of 12.8; fix: set CUDA_HOME"),
        ("2.8.0", CUDA_13, "no library of it for CUDA 13"),
        ("1.9.0", Toolkit("12.4", "12.6", "2.9.1"), "it imports torch.onnx._type_utils"),
        ("1.9.0", Toolkit("13.0", "13.0", "2.11.0"), "it imports torch.onnx._type_utils"),
        ("2.18.0", CUDA_12, "it imports torch.distributed.fsdp._fully_shard"),
        ("2.9.0", CUDA_12, ""),
        ("2.18.0", Toolkit(), ""),  # what is unknown makes no case unavailable
        ("2.18.0", Toolkit("13.0"), ""),
        ("2.18.0", Toolkit(None, "13.0", "2.11.0"), ""),
    ],
)
def test_base_builds_a_release_or_lacks_something(te: str, toolkit: Toolkit, reason: str) -> None:
    lack = te_builds.lack(te, toolkit)
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
    assert te_builds.library(te, cuda) == package


def test_a_build_needs_wheels_and_a_source() -> None:
    parts = te_builds.requirements("2.18.0", "13.0")
    assert parts.wheels[:2] == ("transformer-engine==2.18.0", "transformer-engine-cu13==2.18.0")
    assert parts.source == "transformer-engine-torch==2.18.0"
    assert {tool.partition(">")[0] for tool in parts.tools} == {"pip", "setuptools", "wheel", "ninja", "pybind11"}


@pytest.mark.parametrize(
    ("te", "declared"),
    [
        ("1.9.0", ()),  # flash-attn has no wheel
        ("2.5.0", ("einops",)),
        ("2.7.0", ("einops", "onnx", "onnxscript==0.3.1")),
        ("2.9.0", ("einops", "onnx", "onnxscript")),
    ],
)
def test_a_build_needs_what_its_extension_declares(te: str, declared: tuple[str, ...]) -> None:
    assert te_builds.requirements(te, "12.4").wheels[2:] == declared


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
    assert te_builds.architectures(te, sms) == value


@pytest.mark.parametrize(("cores", "gib", "jobs"), [(16, 126, 16), (16, 24, 8), (2, 24, 2), (8, 2, 1), (4, None, 4)])
def test_jobs_fit_cores_and_memory(cores: int, gib: int | None, jobs: int) -> None:
    assert te_builds.jobs(cores, gib * 2**30 if gib else None) == jobs


@pytest.mark.parametrize(("te", "jobs", "minutes"), [("2.18.0", 15, 2.0), ("2.4.0", 1, 30.0), ("2.3.0", 15, None)])
def test_minutes_are_those_of_one_core_shared(te: str, jobs: int, minutes: float | None) -> None:
    assert te_builds.minutes(te, jobs) == minutes


def test_every_release_in_the_index_has_a_source() -> None:
    """The recorded range is the releases that the catalog lists as being in the index."""
    listed = [release.version for release in real().transformer_engine if release.on_pypi]
    assert listed
    assert [te for te in listed if te not in te_builds.te_builds().extension.versions] == []
    assert all(te_builds.library(te, "12.8") for te in listed)
    assert not te_builds.library(max(listed, key=parse), "11.8")
