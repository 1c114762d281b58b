"""Killed and interrupted runs: no result is lost or duplicated, and no process is left."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from matrix.prove.store import journal, stored_run
from matrix.prove.store.paths import Paths
from tests.founding import SAVE
from tests.real.conftest import Megatrix, remaining, started, wait_for_first_result

CHOICE = ("--no-cache", "--select", f"torch==2.4.0 and failure=={SAVE} and mcore==0.8.0 and not case==train-loop")
CASES = 3


def run_folder(out: Path) -> Path:
    """Return the folder of the only run under `out`."""
    (folder,) = (out / "runs").iterdir()
    return folder


def no_process_left(out: Path) -> None:
    """Fail unless every process of a run is gone within 5 s."""
    assert remaining(f"MEGATRIX_RUN={out}", 5) == {}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_kill_9_then_resume_gives_every_case_once(megatrix: Megatrix, tmp_path: Path, seed: int) -> None:
    """The whole process group dies at a random point; resumed, the run has every planned case exactly once."""
    process = started(tmp_path, *CHOICE)
    while not list(tmp_path.glob("runs/*/plan.json")):
        time.sleep(0.02)  # before its plan is written a run has nothing to resume
    time.sleep(random.Random(seed).uniform(0, 6))  # the test kills the run at any moment
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    no_process_left(tmp_path)

    resumed = megatrix("--resume", "--no-cache", out=tmp_path)

    report = stored_run.read(run_folder(tmp_path))
    assert Counter(record.verdict.value for record in report.records) == {"reproduced": CASES}, resumed.stderr
    results = [
        json.loads(line)["result"]["planned"]["key"]
        for path in run_folder(tmp_path).glob("journal-*.jsonl")
        for line in path.read_text().splitlines()
        if '"result":' in line and line.endswith("}")
    ]
    assert max(Counter(results).values()) == 1
    assert resumed.status == 0


def test_ctrl_c_stops_all_processes_and_reports(tmp_path: Path) -> None:
    """Ctrl-C ends all processes, keeps the journal complete and writes the report."""
    process = started(tmp_path, *CHOICE)
    wait_for_first_result(process)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)

    assert process.returncode == 130, errors
    no_process_left(tmp_path)
    report = stored_run.read(run_folder(tmp_path))
    assert len(report.records) == CASES
    assert len(journal.read(run_folder(tmp_path)).results) >= 1
    assert Paths(tmp_path).pages(run_folder(tmp_path).name).page.is_file()
