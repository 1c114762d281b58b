"""The lines that commands print for their users: each runs in a fresh shell, in another folder.

Those of a bisection are in test_bisection.py, those of a comparison of layouts in test_parity.py.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from tests.real.conftest import COMMAND_S, ROOT
from tests.schemas import records_of

Shell = Callable[[str], subprocess.CompletedProcess[str]]
# The call of `use.py`, and what a person puts in the place of a printed word.
LOG: Final = """Traceback (most recent call last):
  File "/home/me/use.py", line 3, in prepare
    plan.prepare(deadline=3)
TypeError: prepare() got an unexpected keyword argument 'deadline'
"""
WORDS: Final = {
    "FOLDER": ".",
    "TORCH_VERSION": "2.4.0",
    "GOOD_VERSION": "0.7.0",
    "BAD_VERSION": "0.8.0",
    "COMMAND": 'python -c \'import importlib.metadata as m; assert m.version("megatron-core") < "0.8"\'',
    " ID ": " of-a-log ",
}


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Return a function that runs a line in a folder of its own, with `megatrix` on PATH and what tox needs."""
    programs, elsewhere = tmp_path / "bin", tmp_path / "elsewhere"
    for folder in (programs, elsewhere, tmp_path / "entries"):
        folder.mkdir()
    program = programs / "megatrix"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m matrix "$@"\n')
    program.chmod(0o755)
    (elsewhere / "use.py").write_text("import megatron.core\n")
    (elsewhere / "job.log").write_text(LOG)
    names = ("HOME", *(one for one in os.environ if one.startswith(("PIP_", "UV_"))))
    environ = {name: os.environ[name] for name in names if name in os.environ}
    environ |= {"PATH": f"{programs}:{os.environ['PATH']}", "MEGATRIX_OUT": str(tmp_path / "runs")}
    environ |= {"MEGATRIX_FAILURES": str(tmp_path / "entries")}

    def run(line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", line], cwd=elsewhere, env=environ, capture_output=True, text=True, timeout=COMMAND_S,
            check=False,
        )  # fmt: skip

    return run


def test_each_proof_of_check_reproduces_its_failure(shell: Shell) -> None:
    proofs = re.findall(
        r'(?m)^  prove it: megatrix run --select "(.*)"$', shell("megatrix check mcore=0.8.0 torch=2.4.0 --all").stdout
    )
    assert len(proofs) > 3
    assert all("base==torch-2.4.0" in proof for proof in proofs)
    for proof in proofs:
        done = shell(f'megatrix run --select "{proof}" --json')
        verdicts = {record["verdict"] for record in records_of(done.stdout)}
        assert (done.returncode, verdicts) == (0, {"reproduced"}), f"{proof}\n{done.stderr}"


def test_lines_for_an_unknown_fault_run(shell: Shell, request: pytest.FixtureRequest) -> None:
    """The draft of an entry lies in the checkout, and is removed."""
    draft = ROOT / "tests" / "failures" / "of_a_log"
    request.addfinalizer(partial(shutil.rmtree, draft, ignore_errors=True))
    printed = re.findall(r"(?m)^  \$ (megatrix .*?)(?:  #.*)?$", shell("megatrix match job.log").stdout)
    statuses = {}
    for line in printed:
        for word, text in WORDS.items():
            line = line.replace(word, text)
        done = shell(line)
        statuses[line.split()[1]] = done.returncode
        assert done.returncode in (0, 1, 3), f"{line}\n{done.stderr}"
    assert statuses == {"contract": 0, "check": 3, "bisect": 0, "catalog": 0}


@pytest.mark.parametrize("here", ["", "--here"])
def test_planned_case_of_each_base_runs(shell: Shell, here: str) -> None:
    planned = json.loads(shell(f"megatrix plan {here} --level contract --json").stdout)["items"]
    keys = {item["cell"]["base"]: item["key"] for item in planned if item["level"] == "contract"}
    assert keys
    for key in keys.values():
        done = shell(f"megatrix run {here} --case '{key}'")
        assert done.returncode == 0, f"{key}\n{done.stderr}"
        assert "1 ran, 0 unavailable" in done.stdout


def test_fix_of_an_unknown_selection_runs(shell: Shell) -> None:
    refused = shell("megatrix run --select 'case==tp2 and case==pp2'")
    (line,) = re.findall(r"(megatrix plan --select '[^']+')", refused.stderr)
    assert refused.returncode == 2
    assert shell(line).returncode == 0
