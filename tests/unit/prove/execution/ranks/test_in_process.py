"""One rank in this process: each test runs it in a process of its own, whose variables it replaces."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from matrix.ground.errors import MatrixError
from matrix.prove.execution.ranks import in_process
from matrix.prove.execution.ranks.rank_spec import RankJob
from matrix.prove.provision.project import ROOT

BODY = """
import os
import warnings
from pathlib import Path

def body(rank, word):
    mine = Path(rank.workdir, f"{rank.rank}.pid")
    mine.with_suffix(".part").write_text(str(os.getpid()))
    mine.with_suffix(".part").rename(mine)
    other = Path(rank.workdir, f"{1 - rank.rank}.pid")
    while not other.exists():
        pass
    return [rank.rank, rank.world_size, word, os.environ["RANK"], os.environ["WORLD_SIZE"], other.read_text()]

def warns(rank):
    warnings.warn("old", DeprecationWarning)
    return "returned"

def fails(rank):
    raise KeyError("upstream")
"""
MAIN = """
import os, sys
from pathlib import Path
from matrix.prove.execution.ranks import in_process
from matrix.prove.execution.ranks.rank_spec import RankJob
folder = Path({folder!r})
def job(function, size, **kwargs):
    return RankJob(f"{{folder}}/reproduction.py:{{function}}", kwargs, size, (), {{}}, 60, folder / "logs")
"""


def ran(folder: Path, code: str) -> str:
    (folder / "reproduction.py").write_text(BODY)
    text = MAIN.format(folder=str(folder)) + code
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_other_ranks_end_with_it(tmp_path: Path) -> None:
    code = "*own, other = in_process.run(job('body', 2, word='a'), 1)\nprint(own, Path('/proc', other).exists())\n"
    assert ran(tmp_path, code) == "[1, 2, 'a', '1', '2'] False\n"
    assert (tmp_path / "logs" / "rank-0.log").read_text() == ""


def test_process_has_its_variables_again(tmp_path: Path) -> None:
    code = """
before = dict(os.environ), sys.argv[:], sys.path[:]
try:
    in_process.run(job('fails', 1))
except KeyError:
    print((dict(os.environ), sys.argv, sys.path) == before, "RANK" in os.environ)
"""
    assert ran(tmp_path, code) == "True False\n"


def test_warnings_of_upstream_are_no_errors(tmp_path: Path) -> None:
    code = "import warnings\nwarnings.simplefilter('error')\nprint(in_process.run(job('warns', 1)))\n"
    assert ran(tmp_path, code) == "returned\n"


def test_exception_of_the_body_reaches_the_caller(tmp_path: Path) -> None:
    code = """
import traceback
try:
    in_process.run(job('fails', 1))
except KeyError as error:
    print(traceback.extract_tb(error.__traceback__)[-1].name)
"""
    assert ran(tmp_path, code) == "fails\n"


@pytest.mark.parametrize(
    ("launcher", "number", "what"), [("mpirun", 0, "mpirun starts"), ("torchrun", 2, "no such rank")]
)
def test_job_that_can_not_run_here_is_refused(tmp_path: Path, launcher: str, number: int, what: str) -> None:
    job = RankJob("a:b", {}, 2, (), {}, 60, tmp_path, launcher=launcher)
    with pytest.raises(MatrixError, match=what):
        in_process.run(job, number)
