"""The answer of `megatrix check` for a job script that reaches the failure, and for one beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.job_answers import assert_silent

STACK = "torch=2.9.1 mcore=0.16.1 te=none"
REACHES = "--mtp-num-layers 1 --context-parallel-size 2"
BESIDE = f"{REACHES} --calculate-per-token-loss"  # since 0.17 it deviates as well


@pytest.mark.parametrize(("options", "reached"), [(REACHES, True), (BESIDE, False)])
def test_check_answers_silently_different(
    options: str, reached: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_silent("mtp-loss-context-parallel", STACK, options, reached, capsys)
