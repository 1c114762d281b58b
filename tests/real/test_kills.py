"""kill -9 at random points of runs that are resumed: each case once, no process left, no temporary file left."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from matrix.provision.project import ROOT
from matrix.store import journal, night
from matrix.store.paths import Paths
from tests.founding import BEHIND_MPI
from tests.real.conftest import processes

pytestmark = pytest.mark.real

# Some dozen cases at level contract, which need no torch; they run in the environment of these tests.
CHOICE = ("--here", "--select", f"level==contract and failure=={BEHIND_MPI}", "--no-cache")
KILLS = int(os.environ.get("MEGATRIX_KILLS", "8"))  # about 5 s each on 2 cores
SEED = int(os.environ.get("MEGATRIX_SEED", "1"))
LONGEST_S = 5.0  # a run takes about 5 s; later it is over


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder for temporary files; its path is short, since paths of sockets are."""
    with tempfile.TemporaryDirectory(prefix="k-", dir="/tmp") as folder:
        yield Path(folder)


class Runs:
    """Runs in one output folder, each resumed until it is complete."""

    def __init__(self, out: Path, temporary: Path) -> None:
        self.out, self.environment = out, {**os.environ, "TMPDIR": str(temporary)}

    def start(self) -> subprocess.Popen[bytes]:
        """Resume the newest run, or start another one when that is complete."""
        known = Paths(self.out).runs()
        left = [run for run in known[-1:] if self.missing(run)]
        arguments = ["--resume", left[0], "--no-cache"] if left else CHOICE
        command = [sys.executable, "-m", "matrix", "run", "--json", "--out", str(self.out), *arguments]
        return subprocess.Popen(
            command, cwd=ROOT, env=self.environment, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip

    def missing(self, run: str) -> set[str]:
        """Return the cases of a run without a result."""
        folder = Paths(self.out).run(run)
        return {item.key for item in night.planned(folder)} - set(journal.read(folder).results)

    def results(self, run: str) -> Counter[str]:
        """Return how many results each case has in the journals of a run."""
        paths = Paths(self.out).run(run).glob("journal-*.jsonl")
        lines = [line for path in paths for line in path.read_text().splitlines() if line.endswith("}")]
        records = [json.loads(line)["result"] for line in lines if '"result":' in line]
        return Counter(f"{one['cell']['id']} {one['failure']} {one['case']} {one['level']}" for one in records)


def gone(out: Path) -> bool:
    """Return whether every process of the runs ends within 20 s."""
    end = time.monotonic() + 20
    while processes(out) and time.monotonic() < end:
        time.sleep(0.05)  # no event exists for the end of processes that are no children
    return not processes(out)


def test_kill_9_at_random_points(tmp_path: Path, temporary: Path) -> None:
    """The run, its pytest, or everything it started dies."""
    rng, runs = random.Random(SEED), Runs(tmp_path / "out", temporary)
    died = 0
    for _ in range(KILLS):
        process = runs.start()
        time.sleep(rng.uniform(0, LONGEST_S))  # the test kills the run at any moment
        started = list(processes(runs.out))
        for pid in {0: [process.pid], 1: started[:1], 2: [process.pid, *started]}[rng.randrange(3)]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if process.poll() is None:
            process.wait(60)  # only its pytest was killed: it reports that
        died += process.returncode == -signal.SIGKILL
        assert b"Traceback" not in process.communicate()[1]
    for _ in range(2):  # the first completes what is left; the second may start another run
        assert b"Traceback" not in (last := runs.start()).communicate(timeout=120)[1]
        assert last.returncode == 0
    assert died > KILLS / 4
    for run in Paths(runs.out).runs():
        planned = {item.key for item in night.planned(Paths(runs.out).run(run))}
        assert runs.results(run) == Counter(planned), run
    assert gone(runs.out)
    assert [*temporary.iterdir()] == []
