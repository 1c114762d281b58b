"""What `megatrix check` answers for a job that reaches a silent failure, and for one beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from matrix.cli.main import main
from matrix.ground.errors import ExitStatus


def assert_silent(failure: str, stack: str, options: str, reached: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """Assert that a job script with these options is SILENTLY DIFFERENT by a failure, or is not.

    The script is written to the current folder.
    """
    script = Path("train.sbatch")
    script.write_text(f"torchrun --nproc-per-node 8 pretrain_gpt.py --transformer-impl local {options}\n")
    status = main(["check", str(script), stack, "--as-one"])
    answer = capsys.readouterr().out
    assert (f"SILENTLY DIFFERENT: {failure}" in answer) is reached
    if reached:
        assert status == ExitStatus.BAD
        assert "the run goes on, its numbers are wrong" in answer
