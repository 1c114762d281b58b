from __future__ import annotations

from matrix.ask.fit.fit_answer import FitAnswer
from matrix.prove.provision.resolution import Resolution
from matrix.show.fit_text import OFFLINE, constraints, install_lines, render, resolved_text
from tests.unit.ask.fit.questions import answered
from tests.unit.terminals import piped


def printed(answer: FitAnswer, resolved: Resolution | None = None) -> str:
    return piped(*render(answer, resolved))


def test_verdict_is_first() -> None:
    assert printed(answered("torch=2.9.1 driver=550 gpu=H100")).startswith("fits: megatron-core")
    assert printed(answered("te=2.6 driver=570 gpu=H100")).startswith("the wishes exclude each other: te=2.6")


def test_each_part_of_an_answer_is_printed() -> None:
    text = printed(answered("torch=2.9.1 driver=550 gpu=H100 flash-attn"))
    for part in ("CUDA 12.8", "nearest image:", "build", "nvcc", "pip install --no-build-isolation", OFFLINE):
        assert part in text


def test_conflict_names_its_reasons_and_costs() -> None:
    text = printed(answered("torch=2.11 te=2.17.1 cuda=13", machine="aarch64"))
    assert "why: " in text
    assert "1. without torch=2.11: " in text
    assert "3. without cuda=13: " in text


def test_torch_of_another_cuda_has_its_own_line() -> None:
    best = answered("torch=2.12 driver=550").best
    assert best
    lines = [*install_lines(best)]
    assert "uv pip install --torch-backend=cu126 torch==2.12.1" in lines
    assert not any(line.startswith("pip install") and " torch==" in line for line in lines)


def test_constraints_have_the_set_first() -> None:
    answer = answered("torch=2.12 driver=550 te=none")
    resolved = Resolution(("torch==2.12.1+cpu", "numpy==2.5.5", "nvidia-cublas==13.1.1.3"))
    lines = constraints(answer, resolved).splitlines()
    assert "torch==2.12.1" in lines
    assert "numpy==2.5.5" in lines
    assert not any("nvidia" in line or "+cpu" in line for line in lines), "of the index's CUDA, which this set has not"


def test_what_the_index_answers_is_stated() -> None:
    assert resolved_text(None) == OFFLINE
    assert "2 packages" in resolved_text(Resolution(("a==1", "b==2")))
    assert "recorded facts alone" in resolved_text(Resolution(problem="dns error", decided=False))
