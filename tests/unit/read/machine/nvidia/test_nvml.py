"""Queries of NVML through its C interface, with a fake library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from matrix.ground.catalog.machine import Gpu, Nvml
from matrix.read.machine.nvidia import nvml

LOST, MISMATCH, NO_LINK = 15, 18, 2
TEXTS = {LOST: b"GPU is lost", MISMATCH: b"Driver/library version mismatch"}


HINT = "the driver was updated while its kernel module was loaded; reload it or reboot"


class Library:
    """A fake libnvidia-ml.so.1. `links`: up or not, for each GPU; `refuses`: the error code of a function."""

    def __init__(self, *links: Sequence[bool], refuses: Mapping[str, int] | None = None, lost: int = -1) -> None:
        self.links, self.refuses, self.lost = links, refuses or {}, lost

    def __getattr__(self, name: str) -> Any:
        def function(*arguments: Any) -> int | bytes | None:
            if name == "nvmlErrorString":
                return TEXTS.get(arguments[0])
            if name in self.refuses:
                return self.refuses[name]
            if name == "nvmlSystemGetDriverVersion":
                arguments[0].value = b"470.161.03"
            elif name == "nvmlSystemGetCudaDriverVersion":
                arguments[0]._obj.value = 11040
            elif name == "nvmlDeviceGetCount_v2":
                arguments[0]._obj.value = len(self.links)
            elif name == "nvmlDeviceGetHandleByIndex_v2":
                if arguments[0] == self.lost:
                    return LOST
                arguments[1]._obj.value = arguments[0] + 1
            elif name == "nvmlDeviceGetName":
                arguments[1].value = b"NVIDIA A800"
            elif name == "nvmlDeviceGetNvLinkState":
                links = self.links[arguments[0].value - 1]
                if arguments[1] >= len(links):
                    return NO_LINK
                arguments[2]._obj.value = links[arguments[1]]
            return 0

        return function


def last(library: Library) -> Nvml:
    """Return the facts after the last call."""
    *_, found = nvml.look(lambda name: library)
    return found


def test_driver_gpus_and_links_are_reported() -> None:
    found = last(Library([True] * 8, [True] * 7 + [False], []))
    cards = (Gpu("NVIDIA A800", links=8, up=8), Gpu("NVIDIA A800", links=8, up=7), Gpu("NVIDIA A800", links=0, up=0))
    assert found == Nvml("470.161.03", "11.4", cards)


def test_a_lost_gpu_has_a_problem() -> None:
    assert last(Library([True], [True], lost=1)).gpus == (Gpu("NVIDIA A800", links=1, up=1), Gpu(problem="GPU is lost"))


@pytest.mark.parametrize(
    ("refuses", "expected"),
    [
        ({"nvmlInit_v2": MISMATCH}, Nvml(problem=f"nvmlInit returned Driver/library version mismatch: {HINT}")),
        ({"nvmlInit_v2": 77}, Nvml(problem="nvmlInit returned 77")),
        (
            {"nvmlDeviceGetCount_v2": LOST},
            Nvml("470.161.03", "11.4", problem="nvmlDeviceGetCount returned GPU is lost"),
        ),
        ({"nvmlSystemGetDriverVersion": 999, "nvmlSystemGetCudaDriverVersion": 999}, Nvml()),
    ],
)
def test_an_error_code_is_reported(refuses: Mapping[str, int], expected: Nvml) -> None:
    assert last(Library(refuses=refuses)) == expected


def test_facts_are_yielded_before_a_blocking_call() -> None:
    yielded = [(found.asking, found.driver) for found in nvml.look(lambda name: Library())]
    assert yielded == [("nvmlInit", None), ("nvmlDeviceGetCount", "470.161.03"), ("", "470.161.03")]


def test_a_missing_library_is_reported() -> None:
    def missing(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    (found,) = nvml.look(missing)
    assert found == Nvml(problem="libnvidia-ml.so.1: cannot open shared object file")
