"""None"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from matrix.ask.fit.fit_answer import FitAnswer
from matrix.cli import fit as command
from matrix.cli.fit import OFFLINE, constraints, install_lines, render, resolved_text
from matrix.cli.main import main
from matrix.ground.errors import ExitStatus
from matrix.prove.provision.resolution import Resolution
from tests.schemas import items_of
from tests.unit.ask.fit.questions import OLD_CUBLAS, answered
from tests.unit.terminals import piped


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["torch=2.9.1", "driver=550"], ExitStatus.GOOD),
        (["te=2.6", "driver=570"], ExitStatus.BAD),
        (["torhc=2.9.1"], ExitStatus.MISTAKE),
        (["torch=2.4", "driver=545"], ExitStatus.NOTHING),
    ],
)
def test_exit_status_is_that_of_the_verdict(
    words: list[str], status: ExitStatus, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fit", "--offline", "--machine", "x86_64", "--json", *words]) is status
    if status is not ExitStatus.MISTAKE:
        (item,) = items_of(capsys.readouterr().out, "fit")
        assert (item["best"] is None) == (status is ExitStatus.BAD)
        assert bool(item["held_back"]) == (status is not ExitStatus.BAD)


def test_constraints_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "fit.txt"
    assert main(["fit", "--offline", "--machine", "x86_64", "torch=2.9.1", "--constraints", str(path)]) == 0
    assert "torch==2.9.1" in path.read_text().splitlines()
    assert f"-c {path}" in capsys.readouterr().out


def test_index_resolves_wheels_and_requirements_of_sources(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[list[str]] = []

    def resolve(requirements: list[str], python: str) -> Resolution:
        asked.append(requirements)
        return Resolution(("torch==2.9.1",))

    monkeypatch.setattr(command, "resolve", resolve)
    assert main(["fit", "--machine", "x86_64", "--json", "torch=2.9.1", "flash-attn"]) == 0
    ((*requirements,),) = asked
    assert "torch==2.9.1" in requirements
    assert "einops" in requirements
    assert not any(text.startswith("flash-attn") for text in requirements)
    assert json.loads(capsys.readouterr().out)["items"][0]["resolved"] == ["torch==2.9.1"]


def test_set_that_the_index_never_resolves_is_unknown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "resolve", lambda *_: Resolution(problem="incompatible"))
    assert main(["fit", "--machine", "x86_64", "torch=2.9.1", "te=none"]) is ExitStatus.NOTHING
    assert "the index does not resolve the set: incompatible" in capsys.readouterr().out


def test_unreached_index_leaves_the_recorded_facts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "resolve", lambda *_: Resolution(problem="dns error", decided=False))
    assert main(["fit", "--machine", "x86_64", "torch=2.9.1", "te=none"]) is ExitStatus.GOOD
    assert "recorded facts alone decide" in capsys.readouterr().out


def test_without_uv_the_recorded_facts_decide(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "uv", None)
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("UV", raising=False)
    assert main(["fit", "--machine", "x86_64", "torch=2.9.1", "te=none"]) is ExitStatus.GOOD
    assert "recorded facts alone decide (there is no uv: pip install uv)" in capsys.readouterr().out


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
    text = printed(answered(OLD_CUBLAS, machine="aarch64"))
    assert "why: " in text
    assert "1. without te=2.17.1: " in text
    assert "2. without nvidia-cublas=13.1.0.3: " in text


def test_releases_held_back_have_a_line() -> None:
    text = printed(answered("torch=2.5.1 te=2.1"))
    assert "megatron-core 0.15.2, not 0.19.2 and " in text
    assert "declares torch>=2.6.0, not 2.5.1" in text


def test_newer_library_is_installed_after_torch() -> None:
    best = answered("torch=2.12.0 cuda=13.0 te=2.16.0").best
    assert best
    lines = [*install_lines(best)]
    upgrade = lines.index("pip install --no-deps nvidia-cublas==13.4.1.3")
    assert " torch==2.12.0" in lines[upgrade - 1]
    assert "cuBLAS 13.4.1.3" not in printed(answered("torch=2.12.0 cuda=13.0 te=2.16.0"))


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
