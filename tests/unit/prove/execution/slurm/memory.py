"""A Slurm in memory, and a run of fifteen cases on it."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.machine import PythonEnvironment
from matrix.ground.verdicts.outcome import Outcome, OutcomeKind
from matrix.ground.verdicts.record import Record, Verdict
from matrix.prove.execution.engine import EngineRequest, EngineResult
from matrix.prove.execution.slurm.client import CommandOutput
from matrix.prove.planning.night import everything
from matrix.prove.store import journal, stored_run
from matrix.read.machine import installed as environments
from tests.unit.catalogs import case, catalog, clause, failure
from tests.unit.engines import environment_folder

ENTRY = failure(works=(clause(mcore=">=0"),), case=tuple(case(f"case-{place}") for place in range(5)))
KNOWN = catalog(ENTRY, torches=("2.4.0",))
CASES = everything(KNOWN, (Level.CPU,))  # 15: two tasks of at most 8
NODES = "n470|driver470|(null)|8|idle|1\nn535|driver535|gpu:8|8|idle|1\n"


class Cluster:
    """Slurm's commands. A task runs when squeue is called; `ends` returns its final state by job and index."""

    def __init__(self, ends: Callable[[int, int], str] = lambda job, index: "COMPLETED") -> None:
        self.ends, self.nodes, self.commands = ends, NODES, []  # type: ignore[var-annotated]
        self.jobs: dict[int, tuple[str, Path, dict[int, str]]] = {}
        self.looks = 0
        self.forgets = False  # drop ended tasks after they were listed once, as a site's queue does after 300 s
        self.listed = set[tuple[int, int]]()
        self.before_look: Callable[[], None] = lambda: None
        self.work: Callable[[Path, int, bool], None] = work_off

    def __call__(self, command: Sequence[str], given: str, environ: Mapping[str, str] | None) -> CommandOutput:
        self.commands.append(list(command))
        return CommandOutput(0, getattr(self, command[0])(command, given, environ), "")

    def sinfo(self, *_: object) -> str:
        return self.nodes

    def scontrol(self, *_: object) -> str:
        return "MaxArraySize = 1001\n"

    def sbatch(self, command: Sequence[str], given: str, environ: Mapping[str, str] | None) -> str:
        if "--test-only" in command:
            return ""
        options = {key: value for key, _, value in (one.partition("=") for one in command if one.startswith("--"))}
        count = int(options["--array"].removeprefix("0-")) + 1
        part = Path(given.split()[-1].strip("'"))
        self.jobs[len(self.jobs) + 1] = options["--job-name"], part, dict.fromkeys(range(count), "PENDING")
        return f"{len(self.jobs)}\n"

    def scancel(self, command: Sequence[str], *_: object) -> str:
        for job, (_name, _part, states) in self.jobs.items():
            if f"{job}" in command:
                states.update({index: "REST" for index, state in states.items() if state == "PENDING"})
        return ""

    def squeue(self, *_: object) -> str:
        self.before_look()
        self.looks += 1
        rows = []
        for job, (name, part, states) in self.jobs.items():
            known = {index: state for index, state in states.items() if (job, index) not in self.listed}
            rows += [f"{name}|{job}|{index}|{state}|n470|None" for index, state in known.items() if state != "REST"]
            if self.forgets:
                self.listed |= {(job, index) for index, state in known.items() if state != "PENDING"}
            rows += [f"{name}|{job}|N/A|CANCELLED||Resources"] if "REST" in states.values() else []
            for index, state in states.items():
                if state == "PENDING" and (end := self.ends(job, index)) != "PENDING":
                    states[index] = end
                    self.work(part, index, end == "COMPLETED")
        return "\n".join(rows)


def work_off(part: Path, index: int, whole: bool) -> None:
    """Write the records of a task's cases, or only of its first case."""
    folder = part.parent.parent
    keys = json.loads(part.read_text())["tasks"][index]
    cases = [item for item in stored_run.StoredRun(folder).pending() if item.key in keys]
    with journal.Journal.new(folder) as kept:
        for item in cases[: None if whole else 1]:
            kept.result(replace(EXAMPLE, planned=item))


class Maker:
    """Makes no environments; the test has made them before, or they can't be made."""

    def ready(self, bases: Collection[str]) -> None:
        pass

    def lacks(self, base: str) -> str:
        return ""

    def installed(self, base: str) -> PythonEnvironment | None:
        return environments.at(environment_folder(base))

    def run(self, request: EngineRequest) -> EngineResult:
        return EngineResult(
            0, {base: f"{base}: uv can't make it" for base in request.bases if not self.installed(base)}
        )


def passed() -> Record:
    """Return a record with the verdict `holds`."""
    return Record(CASES[0], Verdict.HOLDS, Outcome(OutcomeKind.PASSED))


EXAMPLE = passed()
