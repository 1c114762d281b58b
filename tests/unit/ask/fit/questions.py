"""Questions that public threads ask, as wishes of `megatrix fit`, and shared facts of the tests."""

from __future__ import annotations

from functools import cache
from typing import Final, NamedTuple

from matrix.ask.fit.candidates import Recorded
from matrix.ask.fit.fit_answer import FitAnswer, fit
from matrix.ask.fit.wishes import Wishes, parse_wishes
from matrix.ground.catalog.distributions import read_builds, read_distributions
from tests.unit.catalogs import real


class Question(NamedTuple):
    """A thread, its question as wishes, and whether a set fits; `expected` are versions of the answer."""

    thread: str
    words: str
    fits: bool
    expected: dict[str, str]
    framework: str = ""
    machine: str = "x86_64"


OLD_CUBLAS: Final = "torch=2.11 te=2.17.1 cuda=13 nvidia-cublas=13.1.0.3"  # its Transformer Engine does not load

QUESTIONS: Final = (
    Question("NVIDIA/TransformerEngine#2040", "te=2.6 driver=570 gpu=H100", False, {}),
    Question("NVIDIA/TransformerEngine#2504", "te=2.13 torch=2.11 driver=580 gpu=H100", True, {"cuda": "12.8"}),
    Question("NVIDIA/TransformerEngine#1684", "te=2.1 torch=2.5.1", True, {"cudnn": "9.17.1.4"}),
    Question("NVIDIA/TransformerEngine#2504", "torch=2.12.0 cuda=13.0 te=2.16.0", True, {"nvidia-cublas": "13.4.1.3"}),
    Question("NVIDIA/Megatron-LM#1619", "mcore=0.12.0 torch=2.3.1", True, {"python": "3.11"}),
    Question("NVIDIA/Megatron-LM#3984", "mcore=0.16.0 torch=2.8 flash-attn=2.8.3", True, {"flash-attn": "2.8.3"}),
    Question(
        "NVIDIA/TransformerEngine#3310",
        "torch=2.11 te=2.17.1 cuda=13",
        True,
        {"nvidia-cublas": "13.4.1.3"},
        machine="aarch64",
    ),
    Question("NVIDIA/TransformerEngine#2771", "torch=2.10 flash-attn mcore=none gpu=H100", True, {"torch": "2.10.0"}),
    Question("NVIDIA-NeMo/Megatron-Bridge#4409", "driver=560 gpu=H100 megatron-core=newest", True, {"cuda": "12.8"}),
    Question("NVIDIA-NeMo/Megatron-Bridge#1553", "driver=570.195.03 gpu=B200 flash-attn", True, {"cuda": "12.8"}),
    Question("modelscope/ms-swift 2026-09", "mcore=0.18.2 torch=2.13", True, {"torch": "2.13.0"}, "ms-swift[megatron]"),
    Question("verl-project/verl 2026-01", "gpu=H100 driver=580", True, {"torch": "2.11.0"}, "verl==0.9.1"),
    Question("NVIDIA/TransformerEngine#1309", "torch=2.5.1 te=newest python=3.10", True, {"python": "3.10"}),
    Question(
        "NVIDIA/Megatron-LM#2272",
        "gpu=B200 driver=580 mcore=0.15 flash-attn",
        True,
        {"megatron-core": "0.15.3", "python": "3.12"},
    ),
    Question("NVIDIA/TransformerEngine#2956", "sm=120 driver=575 te=newest", True, {"cuda": "12.8"}),
    Question("NVIDIA-NeMo/Speech#9268", "driver=535 gpu=A100 flash-attn", True, {"cuda": "12.8"}),
)


@cache
def recorded() -> Recorded:
    """Return the facts of this tree, read once."""
    return Recorded(real(), read_distributions(), read_builds())


def wishes(words: str, framework: str = "", machine: str = "x86_64") -> Wishes:
    return parse_wishes(real(), recorded().distributions, [words], framework, machine)


def answered(words: str, framework: str = "", machine: str = "x86_64") -> FitAnswer:
    return kept_answer(words, framework, machine)


@cache  # one key for an argument that is named and one that is not
def kept_answer(words: str, framework: str, machine: str) -> FitAnswer:
    return fit(recorded(), wishes(words, framework, machine))
