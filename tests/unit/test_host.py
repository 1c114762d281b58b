"""What this machine has, and what it can therefore run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from matrix.host import Host, look
from matrix.outcome import Level
from tests.unit.catalogs import catalog, failure, planned

DRIVER = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\nGCC version:  gcc\n"
BARE, SERVER = Host(0, "none", "x86_64"), Host(2, "535.129.03", "x86_64")
CASE = planned(catalog(failure()))


def on_gpus(gpus: int, driver: str = "none") -> object:
    return replace(CASE, level=Level.GPU, gpus=gpus, cell=replace(CASE.cell, driver=driver))


@pytest.mark.parametrize(
    ("host", "case", "answer"),
    [
        (BARE, CASE, (True, "")),
        (BARE, replace(CASE, test=""), (False, "the catalog has no reproduction of it yet")),
        (BARE, on_gpus(1), (False, "needs 1 GPU; host has 0")),
        (BARE, on_gpus(2), (False, "needs 2 GPUs; host has 0")),
        (SERVER, on_gpus(2), (True, "")),
        (SERVER, on_gpus(8), (False, "needs 8 GPUs; host has 2")),
        (SERVER, on_gpus(1, "535"), (True, "")),
        (SERVER, on_gpus(1, "535.86"), (True, "")),
        (SERVER, on_gpus(1, "470.161.03"), (False, "needs driver 470.161.03; host has 535.129.03")),
    ],
)  # fmt: skip
def test_a_host_says_what_it_can_run_and_what_is_missing(host: Host, case: object, answer: tuple[bool, str]) -> None:
    assert answer == host.can_run(case)  # type: ignore[arg-type]


def test_a_verdict_depends_on_gpus_only_where_they_are_used() -> None:
    assert SERVER.capabilities(Level.CPU) == {"machine": "x86_64"}
    assert SERVER.capabilities(Level.GPU) == {"machine": "x86_64", "gpus": 2, "driver": "535.129.03"}


def test_a_machine_without_the_driver_has_no_gpus(tmp_path: Path) -> None:
    assert (look(tmp_path).gpus, look(tmp_path).driver) == (0, "none")


def test_gpus_and_driver_are_read_from_proc(tmp_path: Path) -> None:
    for address in ("0000:17:00.0", "0000:65:00.0"):
        (tmp_path / "driver" / "nvidia" / "gpus" / address).mkdir(parents=True)
    (tmp_path / "driver" / "nvidia" / "version").write_text(DRIVER)
    assert (look(tmp_path).gpus, look(tmp_path).driver) == (2, "535.129.03")


def test_a_version_file_of_another_form_is_no_driver(tmp_path: Path) -> None:
    (tmp_path / "driver" / "nvidia" / "gpus").mkdir(parents=True)
    (tmp_path / "driver" / "nvidia" / "version").write_text("unknown\n")
    assert look(tmp_path).driver == "none"
