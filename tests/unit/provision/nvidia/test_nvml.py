"""NVML is asked through its C interface; a library made by hand answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from matrix.provision.nvidia import nvml
from matrix.provision.nvidia.nvml import Card, Nvml

LOST, MISMATCH, NO_LINK = 15, 18, 2
WORDS = {LOST: b"GPU is lost", MISMATCH: b"Driver/library version mismatch"}


MEND = "the driver was updated while its kernel module was loaded; reload it or reboot"


class Library:
    """What libnvidia-ml.so.1 would answer. `links` has a GPU's links, up or not; `refuses` a function's code."""

    def __init__(self, *links: Sequence[bool], refuses: Mapping[str, int] | None = None, lost: int = -1) -> None:
        self.links, self.refuses, self.lost = links, refuses or {}, lost

    def __getattr__(self, name: str) -> Any:
        def function(*arguments: Any) -> int | bytes | None:
            if name == "nvmlErrorString":
                return WORDS.get(arguments[0])
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
    """What is known when all was asked."""
    *_, found = nvml.look(lambda name: library)
    return found


def test_the_kernel_driver_its_gpus_and_the_links_of_each_are_told() -> None:
    told = last(Library([True] * 8, [True] * 7 + [False], []))
    cards = (Card("NVIDIA A800", 8, 8), Card("NVIDIA A800", 8, 7), Card("NVIDIA A800", 0, 0))
    assert told == Nvml("470.161.03", "11.4", cards)


def test_a_gpu_that_does_not_answer_says_why_beside_those_that_do() -> None:
    assert last(Library([True], [True], lost=1)).gpus == (Card("NVIDIA A800", 1, 1), Card(problem="GPU is lost"))


@pytest.mark.parametrize(
    ("refuses", "told"),
    [
        ({"nvmlInit_v2": MISMATCH}, Nvml(problem=f"nvmlInit says Driver/library version mismatch: {MEND}")),
        ({"nvmlInit_v2": 77}, Nvml(problem="nvmlInit says 77")),
        (
            {"nvmlDeviceGetCount_v2": LOST},
            Nvml("470.161.03", "11.4", problem="nvmlDeviceGetCount says GPU is lost"),
        ),
        ({"nvmlSystemGetDriverVersion": 999, "nvmlSystemGetCudaDriverVersion": 999}, Nvml()),
    ],
)
def test_what_it_refuses_is_told(refuses: Mapping[str, int], told: Nvml) -> None:
    assert last(Library(refuses=refuses)) == told


def test_before_a_call_that_may_not_return_it_says_what_it_asks() -> None:
    told = [(found.asking, found.driver) for found in nvml.look(lambda name: Library())]
    assert told == [("nvmlInit", None), ("nvmlDeviceGetCount", "470.161.03"), ("", "470.161.03")]


def test_a_machine_without_the_library_says_so() -> None:
    def missing(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    (told,) = nvml.look(missing)
    assert told == Nvml(problem="libnvidia-ml.so.1: cannot open shared object file")
