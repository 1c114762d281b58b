"""Answers of `megatrix check` that are no all-clear: what an input names and was not read or is not known."""

from __future__ import annotations

from pathlib import Path

import pytest

from matrix.cli.main import main
from tests.founding import SAVE
from tests.schemas import items_of

FINE = "mcore=0.16.1 torch=2.9.1 te=2.10.0"
BREAKING = "FROM nvcr.io/nvidia/pytorch:24.07-py3\nRUN pip install megatron-core==0.8.0\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MEGATRIX_OUT", str(tmp_path / "out"))
    return tmp_path


def check(*arguments: str) -> int:
    return main(["check", *arguments])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("-r gone.txt\ntorch==2.9.1\n", "gone.txt is missing"),
        ("torch==2.9.1\nmegatron-core==0.16.2\n", "megatron-core 0.16.2 is no release"),
        ("torch==2.99.0\n", "2.99.0 is newer than every release"),
        ("torch==2.9.1\nmegatron-core\n", "no exact version of megatron-core"),
        ("torch==2.9.1\ntransformer-engine>=2.0\n", "no exact version of Transformer Engine"),
        ("torch==2.9.1\napex==0.1\n", "apex 0.1"),
    ],
)
def test_what_a_file_names_and_is_not_known(
    folder: Path, text: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "requirements.txt").write_text(text)
    assert check("requirements.txt") == 3
    out = capsys.readouterr().out
    assert "UNKNOWN:" in out
    assert reason in out
    assert "to do:" in out
    assert check("requirements.txt", "--allow-unknown") == 0


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (FINE, 0),
        (f"{FINE} numpy=2.1.0 driver=535 sm=9.0 gpus=8 python=3.12", 0),
        (f"{FINE} flash-attn=2.8.3", 0),  # a rule bounds it
        (f"{FINE} apex=0.1", 3),
        (f"{FINE} cudnn=9.99.9", 0),  # Transformer Engine's minimum
        (f"{FINE} nccl=2.99.1", 0),
        (f"{FINE} triton=3.4.0", 0),
        (f"{FINE} driver=999", 3),
        ("base=ngc-25.09 driver=580", 0),
        ("base=ngc-25.10 driver=510", 1),
        ("base=nemo-25.07 te=2.10.0 torch=2.9.1 driver=570", 3),
        ("base=ngc-24.03 driver=530", 3),
        ("base=ngc-24.03 driver=450", 3),
        ("torch=2.9.1 driver=530", 0),
        (f"{FINE} sm=9.9", 3),
        ("mcore=0.16.2", 3),
        ("mcore=0.8.0 torch=2.4.1 flash-attn=2.8.3", 1),
        ("base=nemo-25.07", 3),
        ("base=ngc-25.09", 0),
    ],
)
def test_what_the_command_line_names(words: str, status: int) -> None:
    assert check(words) == status


def test_driver_without_a_fact_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    """Once: a driver that the catalog lacks is named as such alone."""
    assert check("base=ngc-24.03 driver=530") == 3
    out = " ".join(capsys.readouterr().out.split())
    assert "UNKNOWN: it is not known whether driver 530 runs ngc-24.03: no source states whether" in out
    assert "to do: driver 535 runs it" in out
    assert check("base=ngc-25.07 driver=570 te=2.10.0 torch=2.9.1", "--allow-unknown") == 0
    check("base=ngc-24.03 driver=450", "--json")
    (answer,) = items_of(capsys.readouterr().out.splitlines()[-1], "check")
    assert [item["text"] for item in answer["stack"]["unread"]] == [
        "driver 450 is no release that this catalog knows: 470 is the first"
    ]


def test_upgrade_to_an_image_without_a_driver_fact(capsys: pytest.CaptureFixture[str]) -> None:
    """ngc-25.04 and later: no source states whether driver 525 runs CUDA 12.9."""
    check("base=ngc-25.03 driver=525", "--upgrade", "base", "--json")
    (answer,) = items_of(capsys.readouterr().out, "check")
    unknown = {step["version"]: step["unknown"] for step in answer["upgrades"][0]["versions"]}
    assert "whether the driver runs the image" in unknown["ngc-25.04"]
    assert "whether the driver runs the image" not in unknown["ngc-25.09"]


def test_typo_gets_the_nearest_version(capsys: pytest.CaptureFixture[str]) -> None:
    check("mcore=0.18.22")
    assert "did you mean 0.18.2" in capsys.readouterr().out


def test_packages_that_torch_pins_are_known(folder: Path) -> None:
    """Their versions follow from torch's; the command line can name any."""
    lines = ["torch==2.9.1", "megatron-core==0.16.1", "triton==3.5.1", "nvidia-cudnn-cu12==9.10.2.21", "numpy==2.3.0"]
    (folder / "requirements.txt").write_text("\n".join(lines))
    assert check("requirements.txt") == 0


@pytest.mark.parametrize(("required", "status"), [("torch", 0), ("torch,te", 3), ("torch,megatron-core,te", 3)])
def test_required_component_is_named(required: str, status: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert check("torch=2.9.1 mcore=0.16.1", "--require", required) == status
    assert ("required and not named" in capsys.readouterr().out) is bool(status)


def test_break_outranks_what_is_unknown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "Dockerfile").write_text(f"{BREAKING}RUN pip install -r gone.txt\n")
    assert check("Dockerfile", "--allow-unknown") == 1
    out = capsys.readouterr().out
    assert f"WILL BREAK: {SAVE}" in out
    assert "UNKNOWN: gone.txt is missing" in out


def test_file_that_is_broken_hides_no_break(folder: Path) -> None:
    (folder / "uv.lock").write_text("[[")
    (folder / "Dockerfile").write_text(BREAKING)
    assert check("uv.lock") == 3
    assert check("uv.lock", "Dockerfile") == 1


def test_unreferenced_file_replaces_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In either order; `--as-one` reads them as one stack, where the later one counts."""
    (folder / "Dockerfile").write_text(BREAKING)
    (folder / "requirements.txt").write_text("megatron-core==0.16.1\ntorch==2.8.0\n")
    assert check("Dockerfile", "requirements.txt") == 1
    assert check("requirements.txt", "Dockerfile", "--json") == 1
    answers = {
        tuple(item["files"]): item["answer"] for item in items_of(capsys.readouterr().out.splitlines()[-1], "check")
    }
    assert answers == {("requirements.txt",): "nothing known to break", ("Dockerfile",): "breaks"}
    assert check("Dockerfile", "requirements.txt", "--as-one") == 0


def test_file_that_includes_another_has_one_stack(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "Dockerfile").write_text(
        "FROM nvcr.io/nvidia/pytorch:24.07-py3\nCOPY *.txt /\nRUN pip install -r /requirements.txt\n"
    )
    (folder / "requirements.txt").write_text("-c limits.txt\nmegatron-core\n")
    (folder / "limits.txt").write_text("megatron-core==0.8.0\n")
    assert check("limits.txt", "requirements.txt", "Dockerfile", "--json") == 1
    (item,) = items_of(capsys.readouterr().out, "check")
    assert item["files"] == ["Dockerfile"]


def test_worst_answer_is_the_status(folder: Path) -> None:
    (folder / "a.txt").write_text("torch==2.9.1\n")
    (folder / "b.txt").write_text("torch==2.99.0\n")
    assert check("a.txt", "b.txt") == 3
    assert check("b.txt", "a.txt", "--allow-unknown") == 0


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("torch=2.11.0 cuda=13.0 driver=550 toolkit=none", 1),
        ("torch=2.11.0 cuda=13.0 driver=550", 0),  # a compat package may be there
        ("torch=2.11.0 cuda=13.0 driver=580 toolkit=none", 0),
        ("torch=2.11.0 te=2.18.0 nvidia-cublas=13.1.0.3 toolkit=none", 1),
        ("torch=2.11.0 te=2.18.0 nvidia-cublas=13.1.0.3", 0),  # a toolkit may have the library
        ("torch=2.9.1 cuda=12.6 sm=10.0", 1),
        ("torch=2.9.1 cuda=12.8 sm=10.0", 0),
        ("te=1.11.0 flash-attn=2.6.3.post1", 1),
        ("te=1.11.0 flash-attn=2.6.3", 0),
        ("te=2.18.0 flash-attn=2.8.3.post1", 0),  # from 1.12 on a warning, and another attention
        ("te=2.20.2 cudnn=9.10.2.21", 1),
        ("te=2.19.0 cudnn=9.10.2.21", 0),
        ("te=2.18.0 flash-attn=2.8.3+local", 0),
        ("te=2.20.2 flash-attn=2.8.3.post2", 0),
    ],
)
def test_rules_that_fit_reads_are_those_of_check(words: str, status: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--brief", *words.split()]) == status, capsys.readouterr().out
