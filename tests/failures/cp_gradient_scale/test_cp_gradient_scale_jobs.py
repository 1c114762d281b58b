"""The answer of `megatrix check` for a job script that reaches the failure, and for one beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from matrix.cli.main import main
from matrix.errors import ExitStatus

STACK = "torch=2.4.0 mcore=0.8.0 te=none"
REACHES = "--context-parallel-size 2"
BESIDE = "--context-parallel-size 1"


@pytest.mark.parametrize(("options", "reached"), [(REACHES, True), (BESIDE, False)])
def test_check_answers_silently_different(
    options: str, reached: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.sbatch"
    script.write_text(f"torchrun --nproc-per-node 8 pretrain_gpt.py --transformer-impl local {options}\n")
    status = main(["check", str(script), STACK, "--as-one"])
    answer = capsys.readouterr().out
    assert ("SILENTLY DIFFERENT: cp-gradient-scale" in answer) is reached
    if reached:
        assert status == ExitStatus.BAD
        assert "the run goes on, its numbers are wrong" in answer
