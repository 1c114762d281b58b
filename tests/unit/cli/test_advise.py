"""`megatrix advise memory`, as typed."""

from __future__ import annotations

import json

import pytest

from matrix.cli.main import main

ISSUE = ["advise", "memory", "--seq-length", "131072", "--workers", "2", "--ranks-per-host", "8"]
HOST = ["--host-memory", "880G", "--shm", "64G"]


def test_what_does_not_fit_is_1_and_names_the_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ISSUE, *HOST]) == 1
    said = capsys.readouterr().out
    assert "128 GiB" in said
    assert "41448 tokens (/dev/shm is the limit)" in said
    assert "--no-create-attention-mask-in-dataloader" in said
    assert "--reset-attention-mask" in said


def test_what_fits_is_0_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ISSUE, *HOST, "--seq-length", "32768"]) == 0
    assert "It fits." in capsys.readouterr().out


def test_without_a_host_the_sizes_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(ISSUE) == 0
    assert "Say --host-memory and --shm" in capsys.readouterr().out


def test_json_holds_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ISSUE, *HOST, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["mask"] == {"worker": 2**37, "first": 2**41, "steady": 2**40, "shm": 5 * 2**37, "host": 2**41}
    assert (told["longest"], told["fits"]) == ({"sequence": 41448, "resource": "/dev/shm"}, False)
    assert told["flag"] == "--no-create-attention-mask-in-dataloader"


@pytest.mark.parametrize("wrong", [["--shm", "64"], ["--seq-length", "128k"], ["--ranks-per-host", "0"]])
def test_nonsense_is_2_with_the_reason(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ISSUE, *wrong]) == 2
    assert "expected" in capsys.readouterr().err
