from __future__ import annotations

import pytest
from packaging.specifiers import SpecifierSet

from matrix.ask.fit.candidates import axes, cuda_package, exact
from tests.unit.ask.fit.questions import recorded, wishes


def torches(words: str) -> list[str]:
    return [str(candidate) for candidate in axes(recorded(), wishes(words))["torch"]]


def test_torch_of_the_index_comes_before_other_cudas() -> None:
    assert torches("torch=2.11") == ["2.11.0", "2.11.0+cu128", "2.11.0+cu126"]


def test_cuda_limits_the_builds_of_torch() -> None:
    assert torches("torch=2.11 cuda=12") == ["2.11.0+cu128", "2.11.0+cu126"]
    assert torches("torch=2.11 cuda=none") == ["2.11.0+cpu"]


def test_wheel_of_torch_fixes_its_libraries() -> None:
    usual = axes(recorded(), wishes("torch=2.11"))["torch"][0].fixes
    assert usual == {
        "torch": "2.11.0",
        "cuda": "13.0",
        "cudnn": "9.19.0.56",
        "nccl": "2.28.9",
        "nvshmem": "3.4.5",
        "triton": "3.6.0",
        "nvidia-cublas": "13.1.0.3",
    }


def test_oldest_reverses_the_order() -> None:
    versions = [candidate.version for candidate in axes(recorded(), wishes("te=oldest"))["transformer-engine"]]
    assert versions[0] == "1.9.0"


def test_releases_that_the_index_lacks_are_no_candidates() -> None:
    assert not axes(recorded(), wishes("te=2.0.0"))["transformer-engine"]


@pytest.mark.parametrize(
    ("limits", "version"), [("==13.1.0.3.*", "13.1.0.3"), ("<=13.1.1.3,>=13.1.0.3", "13.1.1.3"), ("~=3.8.0", "")]
)
def test_exact_version_of_limits(limits: str, version: str) -> None:
    assert exact(SpecifierSet(limits)) == version


def test_package_of_the_library_for_a_cuda() -> None:
    assert cuda_package("12.8") == "transformer-engine-cu12"
