"""kill -9 at random points of runs in a container."""

from __future__ import annotations

from pathlib import Path

from matrix.prove.provision.tools import Tool
from tests.founding import MPI
from tests.image.test_image import no_container_left
from tests.real.kills import KILLS, Kind, kill_at_random_points

KIND = Kind(
    ("--select", f"failure=={MPI} and base==debian-13 and mcore==0.12.3 and te==1.9.0"),
    ("podman run", "conmon", "-m pytest", "multiprocessing.forkserver"), 6, KILLS // 4,
)  # fmt: skip


def test_kill_9_at_random_points(tool: Tool, tmp_path: Path, temporary: Path) -> None:
    kill_at_random_points(KIND, tmp_path / "out", temporary)
    no_container_left(tool, tmp_path / "out")
