"""`megatrix advise memory` on the command line."""

from __future__ import annotations

import json

import pytest

from matrix.cli.main import main

ISSUE = ["advise", "memory", "--seq-length", "131072", "--workers", "2", "--ranks-per-host", "8"]
HOST = ["--host-memory", "880G", "--shm", "64G"]


def test_a_job_too_large_exits_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    """The output names the flag that drops the mask."""
    assert main([*ISSUE, *HOST]) == 1
    printed = capsys.readouterr().out
    assert "128 GiB" in printed
    assert "41448 tokens (/dev/shm is the limit)" in printed
    assert "--no-create-attention-mask-in-dataloader" in printed
    assert "--reset-attention-mask" in printed


def test_a_job_that_fits_exits_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ISSUE, *HOST, "--seq-length", "32768"]) == 0
    assert "It fits." in capsys.readouterr().out


def test_without_a_host_the_sizes_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(ISSUE) == 0
    assert "Say --host-memory and --shm" in capsys.readouterr().out


def test_json_holds_the_same_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ISSUE, *HOST, "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["mask"] == {"worker": 2**37, "first": 2**41, "steady": 2**40, "shm": 5 * 2**37, "host": 2**41}
    assert (report["longest"], report["fits"]) == ({"sequence": 41448, "resource": "/dev/shm"}, False)
    assert report["flag"] == "--no-create-attention-mask-in-dataloader"


@pytest.mark.parametrize("wrong", [["--shm", "64"], ["--seq-length", "128k"], ["--ranks-per-host", "0"]])
def test_invalid_values_exit_with_2(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ISSUE, *wrong]) == 2
    assert "expected" in capsys.readouterr().err
