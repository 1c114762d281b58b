"""The journals of a run, through any order of starts, results, full disks, kills and resumptions."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.planned import Planned
from matrix.ground.verdicts.record import Record, Verdict
from matrix.prove.store import journal, stored_run
from matrix.prove.store.journal import Journal
from tests.profiles import tries
from tests.unit.catalogs import catalog, failure, plan_entry, planned
from tests.unit.show.samples import record

KNOWN = catalog(failure())
PLAN = [planned(KNOWN, base, core) for base in ("torch-2.3.1", "torch-2.4.0") for core in ("0.7.0", "0.8.0", "0.9.0")]
VERDICTS = st.sampled_from((Verdict.HOLDS, Verdict.UNEXPLAINED, Verdict.UNAVAILABLE, Verdict.NOT_REACHED))


def recorded(item: Planned, verdict: Verdict) -> Record:
    return replace(record(verdict), planned=item)


class Process:
    """A process of a run: it runs the cases that had no result when it started."""

    def __init__(self, folder: Path, number: int) -> None:
        done = journal.read(folder).results
        self.left = [item for item in PLAN if item.key not in done]
        self.path = folder / f"journal-{number:03}.jsonl"
        self.journal = Journal(self.path, secrets=())
        self.current: Planned | None = None


class Run(RuleBasedStateMachine):
    """A run, and what its journals must hold: what was acknowledged, and nothing else."""

    processes = Bundle("processes")

    def __init__(self) -> None:
        super().__init__()
        self.temporary = TemporaryDirectory()
        self.folder = Path(self.temporary.name) / "run"
        self.folder.mkdir()
        stored_run.write_plan(self.folder, [plan_entry(item) for item in PLAN])
        self.results: dict[str, set[Verdict]] = {}  # a case that two processes ran has two
        self.started: set[str] = set()
        self.opened: list[Process] = []

    @rule(target=processes)
    def start(self) -> Process:
        """Start a process, or resume the run."""
        self.opened.append(Process(self.folder, len(self.opened)))
        return self.opened[-1]

    @rule(process=processes, data=st.data())
    def begin(self, process: Process, data: st.DataObject) -> None:
        """Start a case."""
        if process.left and not process.current:
            process.current = process.left.pop(data.draw(st.integers(0, len(process.left) - 1)))
            process.journal.started(process.current.key)
            self.started.add(process.current.key)

    @rule(process=processes, verdict=VERDICTS)
    def end(self, process: Process, verdict: Verdict) -> None:
        """Store the result of the case that runs."""
        if process.current:
            process.journal.result(recorded(process.current, verdict))
            if verdict is not Verdict.NOT_REACHED:
                self.results.setdefault(process.current.key, set()).add(verdict)
            process.current = None

    @rule(process=processes, size=st.integers(0, 2000))
    def fill_the_disk(self, process: Process, size: int) -> None:
        """Let the disk be full after `size` bytes of a line: the line is not there, and the process goes on."""
        if process.current:
            before, write = process.path.read_bytes(), os.write
            line = recorded(process.current, Verdict.HOLDS)
            left = [min(size, 200)]

            def full(file: int, data: bytes) -> int:
                written = write(file, data[: left[0]])
                left[0] -= written
                if not written:
                    raise OSError(28, os.strerror(28))
                return written

            with mock.patch("os.write", full), pytest.raises(MatrixError, match="No space left"):
                process.journal.result(line)
            assert process.path.read_bytes() == before

    @rule(target=processes, process=consumes(processes), cut=st.integers(0, 10_000))
    def kill(self, process: Process, cut: int) -> object:
        """Kill a process within a write: any part of its next line may be on the disk."""
        process.journal.close()
        item = process.current or PLAN[0]
        with TemporaryDirectory() as elsewhere, Journal(Path(elsewhere) / "journal-a.jsonl", secrets=()) as copy:
            copy.result(recorded(item, Verdict.HOLDS))
            line = (Path(elsewhere) / "journal-a.jsonl").read_bytes()
        with process.path.open("ab") as file:
            file.write(line[: cut % (len(line) - 1)])  # with its last "}" but no newline it would be whole
        return multiple()

    @invariant()
    def journals_hold_what_was_acknowledged(self) -> None:
        state = journal.read(self.folder)
        assert state.results.keys() == self.results.keys()
        assert all(one.verdict in self.results[key] for key, one in state.results.items())
        assert set(state.started) == self.started

    @invariant()
    def report_has_each_case_once(self) -> None:
        records = stored_run.read(self.folder).records
        assert [one.key for one in records] == [item.key for item in PLAN]
        assert {one.key for one in records if one.verdict is not Verdict.NOT_REACHED} == self.results.keys()

    def teardown(self) -> None:
        for process in self.opened:
            try:
                process.journal.close()
            except OSError:
                continue  # it was killed
        self.temporary.cleanup()


TestRun = Run.TestCase
TestRun.settings = settings(tries(20), stateful_step_count=20)
