"""The user-mode driver in records."""

from __future__ import annotations

import pytest

from matrix.catalog.failure import Level
from matrix.catalog.stack import DRIVER
from matrix.planning.cases import plan_case
from matrix.provision.drivers import found, note
from matrix.provision.nvidia.cuda import Cuda
from matrix.verdicts.planned import Planned
from tests.unit.catalogs import case, failure, real

PACKAGE = Cuda("12.5", "/usr/local/cuda/compat/lib.real/libcuda.so.555.42.06")


ITSELF = Cuda("11.4", "/usr/lib/libcuda.so.470.161.03")


WSL = Cuda("12.5", "/usr/lib/wsl/lib/libcuda.so.1.1")


BY_COMPAT = (
    "driver 470.161.03: ngc-24.03 has CUDA 12.4.0.041 and runs by its compat package; GPUs for data centers only; "
)


def on(image: str, driver: str, level: Level = Level.GPU) -> Planned:
    entry = failure(case=(case(levels=(level,)),))
    return plan_case(real(), entry, entry.case[0], level, real().cell(image, {DRIVER: driver}))


@pytest.mark.parametrize(
    ("driver", "cuda", "expected"),
    [
        ("470.161.03", PACKAGE, f"{BY_COMPAT}found: 555.42.06 (compat package of the image)"),
        ("470.161.03", ITSELF, f"{BY_COMPAT}but found: 470.161.03 (the host driver itself)"),
        ("470.161.03", WSL, f"{BY_COMPAT}not measured"),
        ("470.161.03", None, f"{BY_COMPAT}not measured"),
        (
            "550.54.14",
            PACKAGE,
            "driver 550.54.14: ngc-24.03 is built for driver 550; but found: 555.42.06 (compat package of the image)",
        ),
        (
            "515.43",
            PACKAGE,
            "driver 515.43: no source states whether driver 515 runs CUDA 12.4.0.041; "
            "found: 555.42.06 (compat package of the image)",
        ),
        ("550.54.14", Cuda("12.4", "/usr/lib/libcuda.so.550.54.14"), ""),
        ("550.54.14", None, ""),
        ("none", PACKAGE, ""),
    ],
)
def test_a_note_has_expected_and_found_driver(driver: str, cuda: Cuda | None, expected: str) -> None:
    assert note(real(), on("ngc-24.03", "none"), driver, cuda) == expected


@pytest.mark.parametrize(
    ("cuda", "host", "expected"),
    [
        (PACKAGE, "470.161.03", "555.42.06 (compat package of the image)"),
        (ITSELF, "470.161.03", "470.161.03 (the host driver itself)"),
        (ITSELF, "none", "470.161.03"),  # no kernel driver is known to compare with
        (WSL, "537.13", "CUDA 12.5"),
        (Cuda(problem="libcuda.so.1: not there"), "none", ""),
    ],
)
def test_the_user_mode_driver_in_a_record(cuda: Cuda, host: str, expected: str) -> None:
    assert found(cuda, host, inside=True) == expected
