"""The answer of `megatrix check` for a job script that reaches the failure, and for one beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.job_answers import assert_silent

STACK = "torch=2.9.1 mcore=0.16.1 te=none"


@pytest.mark.parametrize(("clip", "reached"), [("0", True), ("1.0", False)])
def test_check_answers_silently_different(
    clip: str, reached: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_silent("fsdp-norm-zero", STACK, f"--use-megatron-fsdp --clip-grad {clip}", reached, capsys)
