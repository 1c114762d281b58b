"""Containers that share stand-in GPUs: never two cases on one, and a killed container frees its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

from matrix.ground.catalog.loading import load
from matrix.prove.execution.gpus import Pool
from matrix.prove.planning.packing import Demand
from matrix.prove.provision.tools import ContainerSpec, Ref, Tool
from tests.real.conftest import ROOT
from tests.unit.prove.execution.test_gpus import HOLDER, NAMES, WORKER

HANG_S = 120.0  # limit for hanging tests


def start(tool: Tool, name: str, folder: Path, script: str) -> subprocess.Popen[str]:
    """Start a script in a container; a file in `folder` exists for each GPU while it is used."""
    (image,) = load().images
    spec = ContainerSpec(f"{name}-{os.getpid()}", ROOT, (ROOT,), (folder,), {"PYTHONDONTWRITEBYTECODE": "1"})
    command = tool.command(Ref(image.id, image.tag), spec, "python3", "-c", script)
    command.insert(2, "--interactive")
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_containers_never_share_a_gpu(tool: Tool, tmp_path: Path) -> None:
    """Two containers and a process take 1 to 4 GPUs forty times each; a GPU with two users raises FileExistsError."""
    scripts = [WORKER.format(names=NAMES, folder=str(tmp_path), seed=seed) for seed in range(3)]
    with contextlib.ExitStack() as running:
        workers = [
            *(start(tool, f"megatrix-gpus-{place}", tmp_path, script) for place, script in enumerate(scripts[:2])),
            subprocess.Popen(["python3", "-c", scripts[2]], cwd=ROOT, stdin=subprocess.PIPE, text=True),
        ]
        for worker in workers:
            running.enter_context(worker)
        assert [worker.wait(HANG_S) for worker in workers] == [0, 0, 0]


def test_killed_container_frees_its_gpus(tool: Tool, tmp_path: Path) -> None:
    with start(tool, "megatrix-holder", tmp_path, HOLDER.format(names=NAMES, folder=str(tmp_path), count=4)) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline().strip() == ",".join(NAMES)
        tool.kill(f"megatrix-holder-{os.getpid()}")
        with Pool(NAMES, tmp_path, wait_s=HANG_S).take(Demand(4)) as names:
            assert set(names) == set(NAMES)
