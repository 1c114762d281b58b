"""Drivers and images: direct, with the compat package, or too old, and the driver that would do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from matrix.ground.cases.cells import plan_case
from matrix.ground.cases.driver_fit import (
    Fit,
    Fitting,
    branches,
    driver_note,
    driver_of,
    fit_of,
    fitting,
    lack,
    minimum_driver,
    runnable,
    user_mode_driver,
)
from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.machine import Cuda
from matrix.ground.catalog.model import Container, Driver
from matrix.ground.catalog.stack import ABSENT, DRIVER, UNKNOWN, Stack
from matrix.ground.catalog.versions import Range
from matrix.ground.verdicts.planned import Planned
from tests.unit.catalogs import case, catalog, failure, image, planned, real, values

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
        ("ngc-23.12", "510", Fit.UNKNOWN),  # CUDA 12.3: two sources that contradict each other
        ("ngc-25.06", "470.256.02", Fit.TOO_OLD),  # CUDA 12.9, the first without R470
        ("ngc-25.10", "535", Fit.COMPAT),  # CUDA 13.0
        ("ngc-25.10", "535.54", Fit.TOO_OLD),
        ("ngc-25.10", "510", Fit.TOO_OLD),
        ("ngc-25.10", "565", Fit.COMPAT),
        ("ngc-25.10", "580.65.06", Fit.NATIVE),
        ("ngc-26.02", "565", Fit.TOO_OLD),  # CUDA 13.1
        ("nemo-25.09", "570", Fit.NATIVE),  # CUDA 12.9: each driver from 525 runs every CUDA 12
        ("nemo-26.04", "470", Fit.TOO_OLD),
        ("nemo-26.04", "570", Fit.COMPAT),
        ("nemo-26.04", "590", Fit.NATIVE),
        ("ngc-26.09", "570", Fit.UNKNOWN),  # CUDA 13.4: no list was found
        ("ngc-23.10", "535", Fit.NATIVE),  # CUDA 12.2, built for 535
        ("ngc-25.07", "535", Fit.UNKNOWN),
    ],
)
def test_how_an_image_runs_on_a_driver(image: str, driver: str, fit: Fit) -> None:
    assert fitting(real(), IMAGES[image], driver).fit is fit  # type: ignore[index]


PACKAGE = Cuda("12.5", "/usr/local/cuda/compat/lib.real/libcuda.so.555.42.06")


def on(image: str, driver: str, level: Level = Level.GPU) -> Planned:
    entry = failure(case=(case(levels=(level,)),))
    return plan_case(real(), entry, entry.case[0], level, real().cell(image, values(driver=driver)))


def test_an_old_driver_is_named_with_a_fix() -> None:
    assert lack(real(), on("ngc-24.03", "510"), "none") == (
        "driver 510 is too old: ngc-24.03 has CUDA 12.4.0.041, for which its compat package does not work on driver "
        "510; driver 535 would do"
    )


def test_without_a_cell_driver_the_hosts_counts() -> None:
    item = on("ngc-24.03", "none")
    assert [bool(lack(real(), item, host)) for host in ("510.39", "535.86", "none")] == [True, False, False]


@pytest.mark.parametrize("level", [Level.CPU, Level.CONTRACT])
def test_below_level_gpu_the_driver_is_ignored(level: Level) -> None:
    assert (
        lack(real(), on("ngc-24.03", "510", level), "510")
        == driver_note(real(), on("ngc-24.03", "470", level), "", None)
        == ""
    )


def test_a_wheels_base_has_no_driver_rule() -> None:
    assert lack(real(), replace(on("ngc-24.03", "510"), cell=real().cell("torch-2.4.0", {DRIVER: "510"})), "none") == ""


BRANCHES = some.sets(some.sampled_from([driver.branch for driver in real().drivers]))


CONTAINERS = some.sampled_from(real().containers)


@pytest.mark.parametrize(
    ("nodes", "found"),
    [
        (("550", "470", "510"), ("470", "550")),  # with the compat package; directly; not at all
        (("515", "550"), ("550",)),  # nothing is known of 515
        (("515", "510"), ("515",)),
        ((), ()),
    ],
)
def test_the_branches_that_run_an_image(nodes: tuple[str, ...], found: tuple[str, ...]) -> None:
    assert runnable(real(), on("ngc-24.03", "none"), nodes) == (found, "")


def test_without_a_node_the_reason_names_a_branch() -> None:
    reason = (
        "drivers 510 and 520 are too old: ngc-24.03 has CUDA 12.4.0.041, for which its compat package does not work on "
        "driver 520; driver 535 would do"
    )
    assert runnable(real(), on("ngc-24.03", "none"), ("520", "510")) == ((), reason)


def test_the_driver_of_a_cell_decides() -> None:
    assert runnable(real(), on("ngc-24.03", "550.54.14"), ("535", "580")) == (("550",), "")
    assert runnable(real(), on("ngc-24.03", "510"), ("535", "580"))[1].endswith("driver 535 would do")


def test_the_host_driver_overrides_that_of_the_cell() -> None:
    assert lack(real(), on("ngc-24.03", "470.161.03"), "none") == ""
    assert "needs 470.57 of driver 470" in lack(real(), on("ngc-24.03", "470.161.03"), "470.42.01")
    assert driver_note(real(), on("ngc-24.03", "470"), "470.161.03", PACKAGE).startswith("driver 470.161.03: ")


@pytest.mark.parametrize("level", [Level.CPU, Level.CONTRACT])
def test_without_a_gpu_any_node_will_do(level: Level) -> None:
    assert runnable(real(), on("ngc-24.03", "none", level), ("510",)) == ((), "")


@given(CONTAINERS, BRANCHES)
def test_a_case_has_usable_branches_or_a_reason(image: Container, nodes: set[str]) -> None:
    item = on(image.id, "none")
    found, reason = runnable(real(), item, nodes)
    assert set(found) <= nodes
    assert list(found) == sorted(found, key=int)
    assert bool(nodes) == bool(found or reason)
    assert not (found and reason)
    assert not any(lack(real(), item, branch) for branch in found)
    assert not reason or all(lack(real(), item, branch) for branch in nodes)


@given(CONTAINERS, BRANCHES, BRANCHES)
def test_more_nodes_never_make_a_case_unavailable(image: Container, nodes: set[str], further: set[str]) -> None:
    item = on(image.id, "none")
    assert runnable(real(), item, nodes | further)[1] == "" or runnable(real(), item, nodes)[0] == ()


@given(CONTAINERS, BRANCHES)
def test_the_suggested_branch_runs_the_case(image: Container, nodes: set[str]) -> None:
    item, would = on(image.id, "none"), minimum_driver(real(), image)
    if runnable(real(), item, nodes)[1] and would:
        assert runnable(real(), item, nodes | {would}) == ((would,), "")


def test_branches_are_read_from_features() -> None:
    assert branches(["h100", "driver550", "driver470", "driver", "driver-535", "driver550"]) == ("470", "550")


@given(CONTAINERS)
def test_the_suggested_branch_runs_the_image_directly(image: Container) -> None:
    branch = minimum_driver(real(), image)
    assert not branch or fitting(real(), image, branch).fit is Fit.NATIVE


def test_without_an_image_the_cell_driver_decides() -> None:
    item = planned(catalog(failure()), level=Level.GPU)
    assert runnable(catalog(failure()), item, ["535"]) == ((), "")
    named = replace(item, cell=item.cell.with_({DRIVER: "470.161.03"}))
    assert runnable(catalog(failure()), named, ["535"]) == (("470",), "")


PACKAGE = Cuda("12.5", "/usr/local/cuda/compat/lib.real/libcuda.so.555.42.06")


ITSELF = Cuda("11.4", "/usr/lib/libcuda.so.470.161.03")


WSL = Cuda("12.5", "/usr/lib/wsl/lib/libcuda.so.1.1")


BY_COMPAT = (
    "driver 470.161.03: ngc-24.03 has CUDA 12.4.0.041 and runs by its compat package; GPUs for data centers only; "
)


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
    assert driver_note(real(), on("ngc-24.03", "none"), driver, cuda) == expected


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
    assert user_mode_driver(cuda, host, inside=True) == expected


WITHOUT_IMAGE = real().cell("torch-2.4.0", {DRIVER: "470"})
IMAGE = replace(
    image("ngc-24.03", "2.3.0a0"),
    cuda="12.4.0",
    cuda_driver_version_in_image="550.54.14",
    driver_requirement="450 or later",
)
DRIVERS = catalog(
    drivers=(
        Driver("535", max_cuda_major_without_compat="12"),  # type: ignore[arg-type]  # not from TOML
        Driver("510", too_old_for_cuda=Range("<12.5")),  # type: ignore[arg-type]
        Driver("470", compat_from="470.57", compat_cuda=Range("<12.5"), max_cuda_major_without_compat="11"),  # type: ignore[arg-type]
        Driver("515"),  # type: ignore[arg-type]
        Driver("550"),  # type: ignore[arg-type]
        Driver("9999"),  # type: ignore[arg-type]
    )
)


@pytest.mark.parametrize(
    ("changes", "driver", "fit", "reason"),
    [
        ({}, "449.1", Fit.TOO_OLD, "ngc-24.03 requires driver 450 or later"),
        ({}, "450.1", Fit.UNKNOWN, "the catalog has no driver 450"),
        ({"driver_requirement": None}, "449.1", Fit.UNKNOWN, "the catalog has no driver 449"),
        ({"cuda": None}, "550", Fit.UNKNOWN, "the CUDA of ngc-24.03 is not known"),
        ({}, "550.1", Fit.NATIVE, "ngc-24.03 is built for driver 550"),
        ({}, "560", Fit.NATIVE, "ngc-24.03 is built for driver 550"),
        (
            {"cuda_driver_version_in_image": None},
            "550",
            Fit.UNKNOWN,
            "no source states whether driver 550 runs CUDA 12.4.0",
        ),
        ({}, "535.1", Fit.NATIVE, "driver 535 runs every CUDA 12"),
        ({"cuda": "11.8"}, "535", Fit.NATIVE, "driver 535 runs every CUDA 11"),
        ({"cuda": "13.0"}, "535", Fit.UNKNOWN, "no source states whether driver 535 runs CUDA 13.0"),
        (
            {},
            "510",
            Fit.TOO_OLD,
            "ngc-24.03 has CUDA 12.4.0, for which its compat package does not work on driver 510",
        ),
        ({"cuda": "12.5"}, "510", Fit.UNKNOWN, "no source states whether driver 510 runs CUDA 12.5"),
        ({}, "470.56", Fit.TOO_OLD, "ngc-24.03 has CUDA 12.4.0, whose compat package needs 470.57 of driver 470"),
        (
            {},
            "470.57",
            Fit.COMPAT,
            "ngc-24.03 has CUDA 12.4.0 and runs by its compat package; GPUs for data centers only",
        ),
        (
            {},
            "470",
            Fit.COMPAT,
            "ngc-24.03 has CUDA 12.4.0 and runs by its compat package; GPUs for data centers only",
        ),
        ({"cuda": "12.5"}, "470", Fit.UNKNOWN, "no source states whether driver 470 runs CUDA 12.5"),
        ({}, "515", Fit.UNKNOWN, "no source states whether driver 515 runs CUDA 12.4.0"),
    ],
)
def test_reason_of_a_fit(changes: dict[str, Any], driver: str, fit: Fit, reason: str) -> None:
    assert fitting(DRIVERS, replace(IMAGE, **changes), driver) == Fitting(fit, reason)


def test_lowest_branch_is_lowest_by_number() -> None:
    assert minimum_driver(DRIVERS, IMAGE) == "535"
    assert minimum_driver(DRIVERS, replace(IMAGE, cuda="13.0", cuda_driver_version_in_image="600")) == "9999"
    assert minimum_driver(DRIVERS, replace(IMAGE, cuda=None)) == ""


def test_reason_without_a_branch_that_would_do() -> None:
    old = replace(DRIVERS, containers=(IMAGE,), drivers=DRIVERS.drivers[1:2], failures=(failure(),))
    item = planned(old, base="ngc-24.03", level=Level.GPU)
    reason = "ngc-24.03 has CUDA 12.4.0, for which its compat package does not work on driver 510"
    assert runnable(old, item, ["510"]) == ((), f"driver 510 is too old: {reason}; none is known to do")
    older = f"drivers 449 and 510 are too old: {reason}; none is known to do"
    assert runnable(old, item, ["510", "449"]) == ((), older)


def test_versions_of_a_branch_are_one_branch() -> None:
    """As versions, the lowest first."""
    known = replace(DRIVERS, containers=(IMAGE,), failures=(failure(),))
    item = planned(known, base="ngc-24.03", level=Level.GPU)
    assert runnable(known, item, ["9999.1", "550.54", "550.90", "470.60", "470.56"]) == (("470", "550", "9999"), "")


@pytest.mark.parametrize(("host", "driver"), [("550.54", "550.54"), ("none", "470"), (None, "470"), ("", "470")])
def test_driver_of_a_case(host: str | None, driver: str) -> None:
    assert driver_of(on("ngc-24.03", "470"), host) == driver


def test_user_mode_driver_outside_an_image() -> None:
    assert user_mode_driver(PACKAGE, "470.161.03", inside=False) == "555.42.06 (compat package)"


@pytest.mark.parametrize(
    "item", [on("ngc-24.03", "470", Level.CPU), replace(on("ngc-24.03", "470"), cell=WITHOUT_IMAGE)]
)
def test_note_is_for_images_at_level_gpu(item: Planned) -> None:
    assert driver_note(real(), item, "470.161.03", PACKAGE) == ""


@pytest.mark.parametrize(("host", "text"), [("none", "driver 470: "), (None, "driver 470: ")])
def test_note_without_kernel_driver_has_the_cells(host: str | None, text: str) -> None:
    assert driver_note(real(), on("ngc-24.03", "470"), host, PACKAGE).startswith(text)


@pytest.mark.parametrize(
    ("cuda", "driver", "fit"),
    [
        ("12.8", "550", Fit.NATIVE),
        ("13.0", "550.54.15", Fit.TOO_OLD),
        ("13.2", "580", Fit.NATIVE),
        ("12.6", "545", Fit.UNKNOWN),
        ("12.6", "999", Fit.UNKNOWN),
    ],
)
def test_cuda_of_wheels_has_no_compat_package(cuda: str, driver: str, fit: Fit) -> None:
    stack = Stack({"cuda": cuda, "driver": driver, "toolkit": ABSENT})
    fitted = fit_of(real(), stack)
    assert fitted
    assert fitted.fit is fit
    assert fit_of(real(), stack.with_({"toolkit": UNKNOWN})) is None
