from __future__ import annotations

import json
from pathlib import Path

import pytest

from matrix.cli import fit as command
from matrix.cli.main import main
from matrix.ground.errors import ExitStatus
from matrix.prove.provision.resolution import Resolution
from tests.schemas import items_of


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
