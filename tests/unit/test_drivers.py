"""Drivers and images: which runs by itself, which by the compat package, which is too old, and what would do."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as some

from matrix.catalog import Container
from matrix.drivers import Fit, enough, fitting, lack, note
from matrix.outcome import Level
from matrix.plan import plan_case
from matrix.planned import Planned
from tests.unit.catalogs import case, failure, real

IMAGES = {image.id: image for image in real().containers}


@pytest.mark.parametrize(
    ("image", "driver", "fit"),
    [
        ("ngc-24.03", "550", Fit.NATIVE),  # CUDA 12.4, built for 550
        ("ngc-24.03", "580.82.07", Fit.NATIVE),
        ("ngc-24.03", "535", Fit.NATIVE),  # runs every CUDA 12
        ("ngc-24.03", "470.161.03", Fit.COMPAT),  # TransformerEngine#985
        ("ngc-24.03", "470.57", Fit.COMPAT),
        ("ngc-24.03", "470.42.01", Fit.TOO_OLD),
        ("ngc-24.03", "510", Fit.TOO_OLD),
        ("ngc-24.10", "530", Fit.TOO_OLD),  # CUDA 12.6
        ("ngc-24.03", "530", Fit.UNKNOWN),
        ("ngc-24.03", "515", Fit.UNKNOWN),
        ("ngc-25.10", "535", Fit.UNKNOWN),  # CUDA 13
        ("ngc-23.10", "535", Fit.UNKNOWN),
    ],
)
def test_how_an_image_meets_a_driver(image: str, driver: str, fit: Fit) -> None:
    assert fitting(real(), IMAGES[image], driver).fit is fit  # type: ignore[index]


def on(image: str, driver: str, level: Level = Level.GPU) -> Planned:
    entry = failure(case=(case(levels=(level,)),))
    return plan_case(real(), entry, entry.case[0], level, real().cell(image, driver=driver))


def test_a_driver_that_is_too_old_is_named_with_the_branch_that_would_do() -> None:
    assert lack(real(), on("ngc-24.03", "510"), "none") == (
        "driver 510 is too old: ngc-24.03 has CUDA 12.4.0.041, for which its compat package does not work on driver "
        "510; driver 535 would do"
    )


def test_without_a_driver_in_the_cell_the_hosts_counts() -> None:
    item = on("ngc-24.03", "none")
    assert [bool(lack(real(), item, host)) for host in ("510.39", "535.86", "none")] == [True, False, False]


def test_a_result_by_the_compat_package_says_so() -> None:
    told = "driver 470.161.03: ngc-24.03 has CUDA 12.4.0.041 and runs by its compat package; GPUs for data centers only"
    assert note(real(), on("ngc-24.03", "470.161.03"), "none") == told


def test_a_native_driver_needs_no_word() -> None:
    assert note(real(), on("ngc-24.03", "550"), "none") == ""


@pytest.mark.parametrize("level", [Level.CPU, Level.CONTRACT])
def test_below_level_gpu_no_driver_plays_a_part(level: Level) -> None:
    assert lack(real(), on("ngc-24.03", "510", level), "510") == note(real(), on("ngc-24.03", "470", level), "") == ""


def test_a_wheels_base_brings_no_driver_of_its_own() -> None:
    assert lack(real(), replace(on("ngc-24.03", "510"), cell=real().cell("torch-2.4.0", driver="510")), "none") == ""


@given(some.sampled_from(real().containers))
def test_the_branch_that_would_do_runs_the_image_by_itself(image: Container) -> None:
    branch = enough(real(), image)
    assert not branch or fitting(real(), image, branch).fit is Fit.NATIVE
