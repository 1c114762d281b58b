"""Signals at random moments of README's night: status, last line, processes left, and what the last line runs."""

from __future__ import annotations

import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from matrix.ground.errors import ExitStatus
from matrix.prove.provision.indexes import site_environment
from matrix.prove.store import stored_run
from matrix.prove.store.paths import Paths
from tests.founding import SAVE
from tests.real.conftest import COMMAND_S, ROOT, processes
from tests.real.kills import SEED, Runs

INTERRUPTS = int(os.environ.get("MEGATRIX_INTERRUPTS", "2"))  # of each signal; about 40 s each on 2 cores
# 21 cases of one base, 40 s; "" for the whole night, with more cases.
PART = os.environ.get("MEGATRIX_INTERRUPTED_PART", f"--within 'base==torch-2.4.0 and failure=={SAVE}'")
CASES = 21  # of PART; a signal comes after a random number of their results, however fast the machine is
STEP_S = float(os.environ.get("MEGATRIX_INTERRUPTED_S", "2"))  # latest moment of a signal after that result
EARLY_S = 10.0  # of a third of the signals, latest moment after the first output: tox makes or checks environments
EMPTY = 2  # of the starts with each signal, the number without tox environments: tox provisions and makes them
LAST = re.compile(r"megatrix: interrupted; continue with: (.+)")
RESULT = re.compile(r"^\[ *(\d+)/", re.M)
COMMANDS = re.search(r"^    (.* pip install tox) && (.* tox run -e nightly)", (ROOT / "README.md").read_text(), re.M)


@dataclass(frozen=True)
class Interrupt:
    """One signal: to tox alone, or to its process group as by a terminal.

    It comes `moment_s` after the log has this number of results; with 0, after the first output.
    """

    number: signal.Signals
    to_group: bool
    results: int
    moment_s: float
    empty: bool


def interrupts(count: int, seed: int) -> list[Interrupt]:
    """Return `count` interrupts with each of SIGINT and SIGTERM, in random order."""
    rng = random.Random(seed)
    planned = []
    for number in (signal.SIGINT, signal.SIGTERM):
        for index in range(count):
            results = rng.choice([0, *2 * [rng.randint(1, CASES)]])
            moment_s = rng.uniform(0, STEP_S if results else EARLY_S)
            planned.append(Interrupt(number, rng.random() < 0.5, results, moment_s, index < EMPTY))
    rng.shuffle(planned)
    return planned


class ReadmeNight:
    """README's night in a copy of this checkout, with a venv of its own; continued by the line that it prints."""

    def __init__(self, folder: Path, temporary: Path) -> None:
        assert COMMANDS
        install, self.night = COMMANDS.groups()
        self.checkout, self.out, self.log = folder / "megatrix", folder / "out", folder / "night.log"
        shutil.copytree(ROOT, self.checkout, ignore=shutil.ignore_patterns(".*", "reports", "__pycache__"))
        self.mark = f"TMPDIR={temporary}"
        usual = {
            key: value for key, value in os.environ.items() if not key.startswith(("MEGATRIX_", "TOX_", "VIRTUAL"))
        }
        path = f"{self.checkout / 'venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
        self.environment = {**usual, **site_environment(), "PATH": path, "TMPDIR": str(temporary)}
        self.environment["MEGATRIX_OUT"] = str(self.out)
        subprocess.run([sys.executable, "-m", "venv", str(self.checkout / "venv")], check=True)
        subprocess.run(["bash", "-ec", install], cwd=self.checkout, env=self.environment, check=True)
        self.again = self.night = f"{self.night} -- --no-cache {PART}"

    def start(self) -> subprocess.Popen[bytes]:
        """Start the night, or what continues it; stdout and stderr are one file."""
        with self.log.open("wb") as log:
            return subprocess.Popen(
                ["bash", "-c", f"exec {self.again}"],
                cwd=self.checkout,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def interrupted(self, interrupt: Interrupt) -> str:
        """Start it, interrupt it and check its end; return what happened, "" if it ended before the signal."""
        if interrupt.empty:
            shutil.rmtree(self.checkout / ".tox", ignore_errors=True)
        process = self.start()
        while process.poll() is None and not self.has(interrupt.results):
            time.sleep(0.02)  # no event exists for a line in a log
        try:
            process.wait(interrupt.moment_s)
            assert process.returncode == ExitStatus.GOOD, self.log.read_text()
            self.again = self.night
            return ""
        except subprocess.TimeoutExpired:
            phase = re.findall(r"^(\[ *\d+/|\w+:|\.pkg)", self.log.read_text(), re.M)[-1]
            (os.killpg if interrupt.to_group else os.kill)(process.pid, interrupt.number)
        sent = time.monotonic()
        status = process.wait(COMMAND_S)
        ended_s = time.monotonic() - sent
        running = processes(self.mark)
        lines = self.log.read_text().splitlines()
        assert running == {}, "\n".join(lines)
        assert status == ExitStatus.INTERRUPTED, "\n".join(lines)
        hints = [match[1] for match in map(LAST.fullmatch, lines) if match]  # none before the run has a plan
        assert hints or "cases to run" not in "\n".join(lines), "\n".join(lines)
        self.again = hints[-1] if hints else self.again
        assert "--no-cache" in shlex.split(self.again)
        target = f"{interrupt.number.name} to {'its group' if interrupt.to_group else 'tox'}"
        moment = f"{interrupt.moment_s:.1f} s after result {interrupt.results}"
        return f"{target} {moment}, at {phase!r}: status {status} after {ended_s:.1f} s"

    def has(self, results: int) -> bool:
        """Return whether the log has that many results of this start: one that continues a run counts from 1 again."""
        text = self.log.read_text()
        return any(int(number) >= results for number in RESULT.findall(text)) if results else bool(text)

    def complete(self) -> None:
        """Run what continues it to its end."""
        status = self.start().wait(COMMAND_S)
        assert status == ExitStatus.GOOD, self.log.read_text()
        self.again = self.night


def interrupt_at_random_moments(count: int, folder: Path, temporary: Path) -> list[str]:
    """Interrupt the night `count` times with each signal and complete it; return a line for each interrupt."""
    night, done = ReadmeNight(folder, temporary), list[str]()
    for interrupt in interrupts(count, SEED):
        while not (line := night.interrupted(interrupt)):
            pass
        sys.stdout.write(f"{line}\n")
        done.append(line)
    night.complete()
    runs = Runs(night.out, temporary, ())
    for run in Paths(night.out).runs():
        planned = [item.key for item in stored_run.StoredRun(Paths(night.out).run(run)).planned]
        assert runs.results(run) == Counter(planned), run
        sys.stdout.write(f"{run}: {len(planned)} cases, each once\n")
    assert processes(night.mark) == {}
    # pip, which a SIGTERM to the group of a tox that provisions ends too, leaves its own.
    assert [path.name for path in temporary.iterdir() if not path.name.startswith("pip-")] == []
    return done
