"""kill -9 at random points of runs that are resumed: each case once, no process left, no temporary file left."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from matrix.provision.project import ROOT
from matrix.store import journal, night
from matrix.store.paths import Paths
from tests.founding import BEHIND_MPI, SAVE
from tests.real.conftest import processes

KILLS = int(os.environ.get("MEGATRIX_KILLS", "8"))  # about 5 s each on 2 cores, and at level cpu four times that
SEED = int(os.environ.get("MEGATRIX_SEED", "1"))
NOT_REACHED = "not-reached"


@dataclass(frozen=True)
class Kind:
    """A choice of cases, which processes of its runs are killed alone, and how long such a run lasts in s.

    `roles` are parts of the command lines: of tox, the session of pytest, and the forkserver of its ranks.
    """

    choice: tuple[str, ...]
    roles: tuple[str, ...]
    longest_s: float
    kills: int


KINDS = {
    # Some dozen cases that need no torch; they run in the environment of these tests.
    "contract": Kind(
        ("--here", "--select", f"level==contract and failure=={BEHIND_MPI}"), ("-m pytest",), 5.0, KILLS
    ),
    # Nine cases with ranks.
    "cpu": Kind(
        ("--select", f"failure=={SAVE} and case!=train-loop and base==torch-2.4.0 and mcore>=0.7 and mcore<0.10"),
        ("-m tox", "-m pytest", "multiprocessing.forkserver"), 25.0, KILLS // 4
    ),
}  # fmt: skip


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder for temporary files; its path is short, since paths of sockets are."""
    with tempfile.TemporaryDirectory(prefix="k-", dir="/tmp") as folder:
        yield Path(folder)


class Runs:
    """Runs in one output folder, each resumed until it is complete."""

    def __init__(self, out: Path, temporary: Path, choice: Sequence[str]) -> None:
        self.out, self.choice = out, choice
        self.mark = f"TMPDIR={temporary}"
        self.environment = {**os.environ, "TMPDIR": str(temporary)}

    def start(self) -> subprocess.Popen[bytes]:
        """Resume the newest run, or start another one when that is complete."""
        known = Paths(self.out).runs()
        left = [run for run in known[-1:] if self.missing(run)]
        arguments = ["--resume", left[0]] if left else self.choice
        command = [sys.executable, "-m", "matrix", "run", "--json", "--no-cache", "--out", str(self.out), *arguments]
        return subprocess.Popen(
            command, cwd=ROOT, env=self.environment, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip

    def missing(self, run: str) -> set[str]:
        """Return the cases of a run without a result."""
        folder = Paths(self.out).run(run)
        results = journal.read(folder).results.items()
        done = {key for key, record in results if record.verdict.value != NOT_REACHED}
        return {item.key for item in night.planned(folder)} - done

    def results(self, run: str) -> Counter[str]:
        """Return how many results each case has in the journals of a run."""
        paths = Paths(self.out).run(run).glob("journal-*.jsonl")
        lines = [line for path in paths for line in path.read_text().splitlines() if line.endswith("}")]
        records = [json.loads(line)["result"] for line in lines if '"result":' in line]
        done = [one for one in records if one["verdict"] != NOT_REACHED]
        return Counter(f"{one['cell']['id']} {one['failure']} {one['case']} {one['level']}" for one in done)


def gone(runs: Runs) -> bool:
    """Return whether every process of the runs ends within 20 s."""
    end = time.monotonic() + 20
    while processes(runs.mark) and time.monotonic() < end:
        time.sleep(0.05)  # no event exists for the end of processes that are no children
    return not processes(runs.mark)


@pytest.mark.parametrize("name", ["contract", pytest.param("cpu", marks=pytest.mark.slow)])
def test_kill_9_at_random_points(name: str, tmp_path: Path, temporary: Path) -> None:
    """One process of a run dies, or all of them do."""
    kind = KINDS[name]
    rng, runs = random.Random(SEED), Runs(tmp_path / "out", temporary, kind.choice)
    killed = 0
    for _ in range(kind.kills):
        process = runs.start()
        time.sleep(rng.uniform(0, kind.longest_s))  # the test kills the run at any moment
        started = processes(runs.mark)
        role = rng.choice([None, "", *kind.roles])  # all of them, the run itself, or what it started
        named = [pid for pid, line in sorted(started.items()) if role and role in line]
        for pid in {None: [process.pid, *started], "": [process.pid]}.get(role, named[:1]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed += 1
        output = process.communicate(timeout=120)[1]  # of the others, the run reports the death
        assert b"Traceback" not in output
        if role is None or role == "":
            assert gone(runs)
    for _ in range(2):  # the first completes what is left; the second may start another run
        assert b"Traceback" not in (last := runs.start()).communicate(timeout=300)[1]
        assert last.returncode == 0
    assert killed
    for run in Paths(runs.out).runs():
        planned = {item.key for item in night.planned(Paths(runs.out).run(run))}
        assert runs.results(run) == Counter(planned), run
    assert gone(runs)
    assert [*temporary.iterdir()] == []
