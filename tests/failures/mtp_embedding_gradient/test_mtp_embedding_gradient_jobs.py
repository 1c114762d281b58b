"""The answer of `megatrix check` for a job script that reaches the failure, and for one beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.job_answers import assert_silent

STACK = "torch=2.9.1 mcore=0.16.1 te=none"
REACHES = "--mtp-num-layers 1 --pipeline-model-parallel-size 2"
BESIDE = f"{REACHES} --untie-embeddings-and-output-weights"


@pytest.mark.parametrize(("options", "reached"), [(REACHES, True), (BESIDE, False)])
def test_check_answers_silently_different(
    options: str, reached: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_silent("mtp-embedding-gradient", STACK, options, reached, capsys)
