"""kill -9 at random points of runs that are resumed: each case once, no process left, no temporary file left."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matrix.prove.store import journal, stored_run
from matrix.prove.store.paths import Paths
from tests.real.conftest import COMMAND_S, ROOT, command, processes, remaining

KILLS = int(os.environ.get("MEGATRIX_KILLS", "8"))  # about 5 s each on 2 cores, at level cpu four times that
SEED = int(os.environ.get("MEGATRIX_SEED", "1"))
NOT_REACHED = "not-reached"
STEP_S = 2.0  # s from one result to the next, about
GONE_S = 20.0  # s for the processes of a killed run to end


@dataclass(frozen=True)
class Kind:
    """A choice of cases, their number, and which processes of its runs are killed alone.

    `roles` are parts of the command lines: of tox, podman, the session of pytest, and the forkserver of its ranks.
    """

    choice: tuple[str, ...]
    roles: tuple[str, ...]
    cases: int
    kills: int


class Runs:
    """Runs in one output folder, each resumed until it is complete."""

    def __init__(self, out: Path, temporary: Path, choice: Sequence[str]) -> None:
        self.out, self.choice, self.complete = out, choice, set[str]()
        self.mark = f"TMPDIR={temporary}"
        self.environment = {**os.environ, "TMPDIR": str(temporary)}

    def start(self) -> subprocess.Popen[bytes]:
        """Resume the newest run, or start another one when that is complete."""
        known = Paths(self.out).runs()
        left = [run for run in known[-1:] if self.missing(run)]
        self.complete = {*known} - {*left}
        arguments = ["--resume", left[0]] if left else self.choice
        return subprocess.Popen(
            command(["--json", "--no-cache", *arguments], self.out), cwd=ROOT, env=self.environment,
            start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip

    def missing(self, run: str) -> set[str]:
        """Return the cases of a run without a result."""
        folder = Paths(self.out).run(run)
        results = journal.read(folder).results.items()
        done = {key for key, record in results if record.verdict.value != NOT_REACHED}
        return {item.key for item in stored_run.StoredRun(folder).planned} - done

    def progress(self) -> int:
        """Return how many results the started run has, -1 before its plan is written."""
        current = [run for run in Paths(self.out).runs() if run not in self.complete]
        return sum(self.results(current[0]).values()) if current else -1

    def results(self, run: str) -> Counter[str]:
        """Return how many results each case has in the journals of a run."""
        paths = Paths(self.out).run(run).glob("journal-*.jsonl")
        lines = [line for path in paths for line in path.read_text().splitlines() if line.endswith("}")]
        records = [json.loads(line)["result"] for line in lines if '"result":' in line]
        done = [one for one in records if one["verdict"] != NOT_REACHED]
        return Counter(one["planned"]["key"] for one in done)


def kill_at_random_points(kind: Kind, out: Path, temporary: Path) -> None:
    """Kill one process of a run, or all of them, and resume it, `kind.kills` times; then check what is left."""
    rng, runs = random.Random(SEED), Runs(out, temporary, kind.choice)
    killed = 0
    for _ in range(kind.kills):
        process = runs.start()
        wanted = rng.randint(-1, kind.cases)  # -1: also before its plan is written
        while process.poll() is None and runs.progress() < wanted:
            time.sleep(0.02)  # no event exists for a line in a journal
        time.sleep(rng.uniform(0, STEP_S))
        started = processes(runs.mark)
        role = rng.choice([None, "", *kind.roles])  # all of them, the run itself, or what it started
        named = [pid for pid, line in sorted(started.items()) if role and role in line]
        for pid in {None: [process.pid, *started], "": [process.pid]}.get(role, named[:1]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed += 1
        output = process.communicate(timeout=COMMAND_S)[1]  # of the others, the run reports the death
        assert b"Traceback" not in output
        if role is None or role == "":
            assert remaining(runs.mark, GONE_S) == {}
    for _ in range(2):  # the first completes what is left; the second may start another run
        assert b"Traceback" not in (last := runs.start()).communicate(timeout=COMMAND_S)[1]
        assert last.returncode == 0
    assert killed
    for run in Paths(runs.out).runs():
        planned = {item.key for item in stored_run.StoredRun(Paths(runs.out).run(run)).planned}
        assert runs.results(run) == Counter(planned), run
    assert remaining(runs.mark, GONE_S) == {}
    assert [*temporary.iterdir()] == []
