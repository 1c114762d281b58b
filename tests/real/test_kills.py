"""kill -9 at random points of runs on wheels."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.founding import BEHIND_MPI, SAVE
from tests.real.kills import KILLS, Kind, kill_at_random_points

KINDS = {
    # Some dozen cases that need no torch; they run in the environment of these tests.
    "contract": Kind(
        ("--here", "--select", f"level==contract and failure=={BEHIND_MPI}"), ("-m pytest",), 12, KILLS
    ),
    # Nine cases with ranks.
    "cpu": Kind(
        ("--select", f"failure=={SAVE} and case!=train-loop and base==torch-2.4.0 and mcore>=0.7 and mcore<0.10"),
        ("-m tox", "-m pytest", "multiprocessing.forkserver"), 9, KILLS // 4
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ["contract", "cpu"])
def test_kill_9_at_random_points(name: str, tmp_path: Path, temporary: Path) -> None:
    kill_at_random_points(KINDS[name], tmp_path / "out", temporary)
