"""The wheel, installed into an empty environment and used from an empty folder."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.founding import BEHIND_MPI, SAVE
from tests.real.conftest import COMMAND_S, ROOT, Megatrix, made_base, uv
from tests.schemas import items_of

LOG = """Traceback (most recent call last):
  File "/Megatron-LM/megatron/training/initialize.py", line 209, in _initialize_tp_communicators
TypeError: initialize_ub() got an unexpected keyword argument 'tp_size'
"""
FILES = {
    "train.log": LOG,
    "uv.lock": '[[package]]\nname = "torch"\nversion = "2.4.1"\n',
    "Dockerfile": "FROM nvcr.io/nvidia/pytorch:24.07-py3\nRUN pip install megatron-core==0.8.0\n",
    "job.sh": "torchrun --nproc_per_node 8 pretrain_gpt.py --seq-length 131072\n",
    "environment.yml": "dependencies: [pytorch=2.4.1]\n",
}
# Command lines, run in this order in one folder, and their exit statuses.
COMMANDS = {
    "--help": 0,
    "--version": 0,
    "plan --stats": 0,
    "plan --here": 0,
    "check torch-2.4.0/mcore-0.8.0/te-none/driver-none": 1,
    "check torch=2.4.0 mcore=0.8.0": 1,
    "check": 3,  # none of the packages is there
    "check uv.lock Dockerfile --json": 1,
    "check job.sh --host-memory 880G --shm 64G mcore=0.16.1": 2,
    "check mcore=0.16.1 job.sh --host-memory 880G --shm 64G": 1,
    "check environment.yml": 0,
    "check -- true": 0,
    "match train.log": 0,
    "contract --mcore 0.8.0 --te 1.9.0": 0,
    "surface record no-such-folder": 2,
    f"bisect {BEHIND_MPI} --axis te --mcore 0.8.0 --good 1.9.0 --bad 1.8.0": 0,
    "compare torch=2.4.1 torch=2.4.1 -- true": 2,
    "build no-such-image": 2,
    "run --line te199": 2,
    "report": 2,  # nothing has run
    f"run --here --level contract --select 'failure=={BEHIND_MPI} and mcore==0.8.0'": 0,
    "report --json": 0,
    "run --resume": 0,
    "run --here --out train.log": 2,
}

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from this checkout."""
    folder = tmp_path_factory.mktemp("dist")
    uv("build", "--wheel", "--out-dir", str(folder), str(ROOT))
    (made,) = folder.glob("*.whl")
    return made


def command_of(python: Path, folder: Path) -> Command:
    """Return a function that runs the megatrix of an interpreter in a folder with a separate cache."""

    def call(line: str) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("MEGATRIX_", "TOX_"))}
        environment.pop("PYTHONPATH", None)
        environment["MEGATRIX_CACHE"] = str(folder.parent / "cache")
        return subprocess.run(
            [python.with_name("megatrix"), *shlex.split(line)],
            cwd=folder, env=environment, capture_output=True, text=True, timeout=COMMAND_S, check=False,
        )  # fmt: skip

    return call


@pytest.mark.change
def test_every_command_works_from_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    venv, folder = tmp_path / "venv", tmp_path / "empty"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    uv("venv", "--python", sys.executable, str(venv))
    uv("pip", "install", "--python", str(venv / "bin" / "python"), str(wheel))
    megatrix = command_of(venv / "bin" / "python", folder)

    ran = {line: megatrix(line) for line in COMMANDS}

    assert {line: one.returncode for line, one in ran.items()} == COMMANDS
    assert [line for line, one in ran.items() if "Traceback" in one.stderr] == []
    assert sorted(path.name for path in folder.iterdir()) == sorted(["reports", *FILES])
    assert len(list((folder / "reports" / "out" / "runs").iterdir())) == 1  # runs that did not start left none


def test_environment_with_torch_reproduces_a_failure(megatrix: Megatrix, wheel: Path, tmp_path: Path) -> None:
    """As in an image: an environment with torch and megatron-core, where the wheel is installed."""
    megatrix("--select", f"torch==2.4.0 and failure=={SAVE} and case==world1 and mcore==0.8.0")
    base, venv, folder = made_base("torch-2.4.0"), tmp_path / "venv", tmp_path / "empty"
    folder.mkdir()
    python = venv / "bin" / "python"
    uv("venv", "--python", str((base / "bin" / "python").resolve()), str(venv))
    (own,), (site,) = venv.glob("lib/python*/site-packages"), base.glob("lib/python*/site-packages")
    (own / "base.pth").write_text(f"{site}\n")
    uv("pip", "install", "--python", str(python), str(wheel), "megatron-core==0.8.0")

    ran = command_of(python, folder)(f"run --here --json --select 'failure=={SAVE} and case==tp2 and mcore==0.8.0'")

    records = items_of(ran.stdout, "records")
    assert [(one["cell"]["base"], one["cell"]["stack"]["torch"], one["verdict"]) for one in records] == [
        ("host", "2.4.0", "reproduced")
    ], ran.stderr
    assert ran.returncode == 0
    assert records[0]["reproduce"].startswith("megatrix run --here --select ")
