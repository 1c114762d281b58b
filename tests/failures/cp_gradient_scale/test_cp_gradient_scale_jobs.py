"""The answer of `megatrix check` for a job script that reaches the failure, and for one beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.job_answers import assert_silent

STACK = "torch=2.4.0 mcore=0.8.0 te=none"
REACHES = "--context-parallel-size 2"
BESIDE = "--context-parallel-size 1"


@pytest.mark.parametrize(("options", "reached"), [(REACHES, True), (BESIDE, False)])
def test_check_answers_silently_different(
    options: str, reached: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_silent("cp-gradient-scale", STACK, options, reached, capsys)
