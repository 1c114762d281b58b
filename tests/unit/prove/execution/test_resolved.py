"""The record of a case names versions, drivers and GPUs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.machine import Cuda, Gpu, Nvml
from matrix.prove.execution.ranks import shared_gpu
from matrix.read.machine import hardware
from tests.unit.prove.execution.sessions import BASE, CASE, ON_GPUS, OWN, on_gpus


@pytest.mark.usefixtures("no_overlays")
def test_record_names_gpus_links_and_nccl(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cards = (Gpu("H100", links=18, up=18),) * 8
    monkeypatch.setattr(hardware, "management", lambda: Nvml("535.129.03", "12.2", cards))
    current, _ = on_gpus(folder, 8)
    environment = replace(BASE, packages={**BASE.packages, "nvidia-nccl-cu12": "2.20.5"})
    current.installation = replace(current.installation, environment=environment)
    resolved = current.reproduction(ON_GPUS).run().resolved
    current.close()
    assert {name: resolved[name] for name in ("GPUs", "NVLink", "NCCL", "backend", "host driver")} == {
        "GPUs": "2 of 8 x H100, SM 9.0",
        "NVLink": "18 of 18 links up",
        "NCCL": "2.20.5",
        "backend": "nccl",
        "host driver": "535.129.03",
    }


@pytest.mark.usefixtures("no_overlays")
@pytest.mark.parametrize(
    ("gpus", "mps", "note"),
    [(2, "that of someone else, in /tmp/mps", False), (1, "none", True)],
)
def test_daemon_of_someone_else_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, gpus: int, mps: str, note: bool
) -> None:
    """Ranks that share a GPU do not use it; any other process of CUDA does, unasked."""
    monkeypatch.setattr(shared_gpu, "foreign", lambda: "/tmp/mps")
    current, _ = on_gpus(folder, gpus)
    record = current.reproduction(ON_GPUS).run()
    current.close()
    assert record.resolved["MPS"] == mps
    assert any("in /tmp/mps, which someone else runs, is not used" in text for text in record.notes) is note


@pytest.mark.usefixtures("no_overlays")
@pytest.mark.parametrize(
    ("library", "image", "expected"),
    [
        (OWN, "", "535.129.03 (the host driver itself)"),
        ("/usr/local/cuda/compat/libcuda.so.555.42.06", "", "555.42.06 (compat package)"),
        ("/usr/local/cuda/compat/libcuda.so.555.42.06", "sha256:ab", "555.42.06 (compat package of the image)"),
    ],
)
def test_record_names_the_user_mode_driver(folder: Path, library: str, image: str, expected: str) -> None:
    cuda = Cuda("12.2", library, tuple(Gpu("H100", "9.0", 80, True, uuid) for uuid in ("GPU-0", "GPU-1")))
    current, _ = on_gpus(folder, 2, cuda=cuda)
    current.options = replace(current.options, image=image)
    made = current.reproduction(replace(CASE, level=Level.GPU, gpus=2)).run()
    current.close()
    assert (made.resolved["host driver"], made.resolved["user-mode driver"]) == ("535.129.03", expected)
