"""Cases in pytest-xdist: one plan, one journal, each case once, and a killed worker loses only its case."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.stack import MCORE
from matrix.ground.verdicts.record import Verdict
from matrix.prove.execution.relay import Sender
from matrix.prove.execution.workers import HANDED, Controller, Groups, group, next_group
from matrix.prove.provision.project import ROOT
from matrix.prove.store import journal, stored_run
from matrix.prove.store.stored_run import Night
from tests.unit.catalogs import catalog, failure, planned
from tests.unit.processes import HANG_S, ended

pytest.importorskip("xdist", reason="the tests of the project install it")
CASES = [f"{name} {core}" for name in ("first", "second", "third") for core in ("0.7.0", "0.8.0", "0.9.0")]
WAITS = ("second", "0.8.0")


@dataclass
class Site:
    """A folder with a failure, and the runs of pytest on it."""

    folder: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, *arguments: str, do: dict[str, str] | None = None) -> subprocess.Popen[str]:
        """Start pytest; `do` maps cases to what they do in place of passing."""
        names = ("xdist.plugin", "matrix.prove.execution.plugin", "tests.unit.prove.execution.small_plan")
        plugins = [word for name in names for word in ("-p", name)]
        environ = {
            **os.environ,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # to import hypothesis takes a second
            "PYTHONPATH": str(ROOT),
            "SMALL_PLAN": str(self.folder),
            "DO": json.dumps(do or {}),
            "MEGATRIX_OUT": str(self.folder / "out"),
            "MEGATRIX_BASE": "torch-2.4.0",
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *plugins, "break", *arguments],
            cwd=self.folder,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.started.append(process)
        return process

    def run(self, *arguments: str, do: dict[str, str] | None = None) -> tuple[int, str]:
        """Run pytest to its end; return its status and output."""
        process = self.start(*arguments, do=do)
        output, _ = process.communicate(timeout=HANG_S)
        return process.returncode, output

    def ran(self) -> list[str]:
        """Return the cases that ran, sorted, each as often as it ran."""
        return sorted((self.folder / "ran").read_text().splitlines())

    @property
    def runs(self) -> list[Path]:
        """The folders of the runs, the oldest first."""
        return sorted((self.folder / "out" / "runs").glob("*"))

    def night(self) -> Night:
        """Return the newest run, which must have one journal."""
        assert len(list(self.runs[-1].glob("journal-*"))) == 1
        return stored_run.read(self.runs[-1])

    def waiting(self) -> int:
        """Wait for a case that waits; return the process that runs it."""
        file = os.open(self.folder / "waits", os.O_RDWR)  # does not block where pytest ends without a writer
        try:
            readable, _, _ = select.select([file], [], [], HANG_S)
            assert readable, f"no case waits after {HANG_S} s"
            return int(os.read(file, 100))
        finally:
            os.close(file)


@pytest.fixture
def site(tmp_path: Path) -> Any:
    (tmp_path / "break").mkdir()
    (tmp_path / "break" / "failure.toml").touch()
    (tmp_path / "pytest.ini").touch()
    os.mkfifo(tmp_path / "waits")
    made = Site(tmp_path)
    yield made
    for process in made.started:
        with process:
            process.kill()


def verdicts(found: Night) -> dict[str, str]:
    return {f"{one.case} {one.cell.stack[MCORE]}": one.verdict.value for one in found.records}


def test_workers_share_one_plan_and_one_journal(site: Site) -> None:
    serial, _ = site.run()
    before = verdicts(site.night())
    (site.folder / "ran").unlink()
    status, output = site.run("-n", "2", "-v", do={})
    assert (status, serial) == (0, 0), output
    assert verdicts(site.night()) == before == dict.fromkeys(CASES, "learned")
    assert site.ran() == sorted(CASES)
    assert "megatrix: base torch-2.4.0" in output
    assert "LEARNED" in output


@pytest.mark.parametrize("workers", ["0", "2"])
def test_deselected_cases_are_not_in_the_plan(site: Site, workers: str) -> None:
    status, output = site.run("-n", workers, "-k", "second and not 0.9.0")
    assert status == 0, output
    assert list(verdicts(site.night())) == ["second 0.7.0", "second 0.8.0"]


@pytest.mark.parametrize("workers", ["0", "2"])
def test_nothing_selected_makes_no_run(site: Site, workers: str) -> None:
    status, output = site.run("-n", workers, "-k", "no_such_case")
    assert (status, site.runs) == (pytest.ExitCode.NO_TESTS_COLLECTED, []), output


def test_killed_worker_loses_only_its_case(site: Site) -> None:
    status, output = site.run("-n", "2", do={"second 0.8.0": "kill"})
    assert (status, site.ran()) == (1, sorted(CASES)), output
    assert verdicts(site.night()) == {**dict.fromkeys(CASES, "learned"), "second 0.8.0": "not-reached"}
    (lost,) = [one for one in site.night().records if one.verdict is Verdict.NOT_REACHED]
    assert "started and not finished: its pytest worker gw" in lost.outcome.reason


def test_worker_that_ends_states_its_reason(site: Site) -> None:
    """pytest-xdist reports its exit as a Ctrl-C; the reason is printed, and in the record of its case."""
    status, output = site.run("-n", "2", do={"first 0.7.0": "refuse"})
    assert status == pytest.ExitCode.INTERRUPTED, output
    assert "\nmegatrix: no rank starts" in output
    reasons = [one.outcome.reason for one in site.night().records if one.verdict is Verdict.NOT_REACHED]
    assert any("started and not finished" in reason and "no rank starts" in reason for reason in reasons), reasons


def test_last_failed_runs_only_the_red_case(site: Site) -> None:
    site.run("-n", "2", do={"third 0.7.0": "fail"})
    (site.folder / "ran").unlink()
    status, output = site.run("-n", "2", "--lf")
    assert (status, site.ran(), list(verdicts(site.night()))) == (0, ["third 0.7.0"], ["third 0.7.0"]), output


def test_exitfirst_ends_the_workers_after_what_they_have(site: Site) -> None:
    """A worker has at most two cases; the others stay in the plan, not reached."""
    status, output = site.run("-n", "2", "-x", do=dict.fromkeys(CASES, "fail"))
    found = Counter(verdicts(site.night()).values())
    assert status == pytest.ExitCode.INTERRUPTED, output
    assert 1 <= found["unexplained"] <= 5
    assert found["not-reached"] == len(CASES) - found["unexplained"] == len(CASES) - len(site.ran())


def test_other_distribution_is_respected(site: Site) -> None:
    status, output = site.run("-n", "2", "--dist", "load", "-v")
    assert (status, site.ran()) == (0, sorted(CASES))
    assert "LoadScheduling" in output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_controller_interrupts_its_workers(site: Site, number: signal.Signals) -> None:
    """Only the controller gets the signal, as from tox; the case that runs is not finished."""
    process = site.start("-n", "2", do={"second 0.8.0": "wait"})
    worker = site.waiting()
    process.send_signal(number)
    output, _ = process.communicate(timeout=HANG_S)
    assert process.returncode == pytest.ExitCode.INTERRUPTED, output
    assert ended(worker)
    state = journal.read(site.runs[-1])
    (waiting,) = [
        item.key for item in stored_run.StoredRun(site.runs[-1]).planned if (item.case, item.cell.stack[MCORE]) == WAITS
    ]
    assert waiting in state.started.keys() - state.results.keys()  # perhaps beside a case of the other worker


def test_worker_of_a_killed_controller_ends(site: Site) -> None:
    process = site.start("-n", "2", do={"second 0.8.0": "wait"})
    worker = site.waiting()
    process.kill()
    assert ended(worker)
    journal.settle(site.runs[-1])  # a resumed run waits for the worker, and only for it


def test_unwritable_journal_is_an_error(site: Site) -> None:
    (site.folder / "out").write_text("a file in the place of the folder")
    status, output = site.run("-n", "2")
    assert status == pytest.ExitCode.USAGE_ERROR
    assert "Traceback" not in output
    assert not (site.folder / "ran").exists()


@dataclass(eq=False)
class FakeWorker:
    """A worker that only keeps what it was sent."""

    gateway: Any = None
    workerinput: dict[str, Any] = field(default_factory=dict)
    given: list[int] = field(default_factory=list)
    shutting_down: bool = False

    def send_runtest_some(self, indices: Sequence[int]) -> None:
        assert not self.shutting_down
        self.given += indices

    def shutdown(self) -> None:
        self.shutting_down = True


@given(st.data())
def test_each_case_runs_once_or_is_lost_once(data: st.DataObject) -> None:
    """Workers complete cases and are killed in any order, at any moment; each that is killed is replaced."""
    ids = [f"{name}@{data.draw(st.integers(0, 3))}" for name in range(data.draw(st.integers(1, 12)))]
    started: set[str] = set()
    groups = Groups(2, lambda one: one.partition("@")[2], started)
    ended = list[str]()
    workers = list[FakeWorker]()

    def collect() -> None:
        workers.append(FakeWorker())
        groups.add_node(workers[-1])
        groups.add_node_collection(workers[-1], ids)
        if groups.collection_is_completed:
            groups.schedule()

    collect()
    collect()
    while groups.has_pending:
        if groups.tests_finished:  # as xdist does
            for worker in workers:
                worker.shutdown()
        able = [worker for worker in workers if len(worker.given) > 1 or (worker.given and worker.shutting_down)]
        worker = data.draw(st.sampled_from(able))
        current = ids[worker.given[0]]
        event = data.draw(st.sampled_from(("completes", "is killed in a case", "is killed between cases")))
        if event != "is killed between cases":
            started.add(current)
            ended.append(current)
        if event == "completes":
            groups.mark_test_complete(worker, worker.given.pop(0))
        else:
            workers.remove(worker)
            assert groups.remove_node(worker) == (current if current in started else None)
            collect()
    assert sorted(ended) == sorted(ids)
    assert groups.tests_finished


def test_cases_of_an_overlay_are_one_group() -> None:
    known = catalog(failure())
    one = planned(known)
    assert group(one) == group(replace(one, case="pp2", failure="another"))
    assert group(one) != group(planned(known, core="0.9.0"))
    assert group(one) != group(replace(one, packages=("psutil==6.0",)))
    read = replace(one, level=Level.CONTRACT)
    assert group(read) != group(replace(read, case="pp2"))


@pytest.mark.parametrize(
    ("waiting", "last", "others", "index"),
    [
        ([(2, "a"), (1, "b")], "b", [], 0),  # the most GPUs first
        ([(1, "a"), (1, "b"), (1, "b")], "b", [], 1),
        ([(1, "a"), (1, "b")], "", ["a"], 1),
        ([(1, "a"), (1, "a")], "b", ["a"], 0),
        ([(1, "a"), (1, "b")], "a", ["a"], 0),
    ],
)
def test_worker_keeps_its_overlays(waiting: list[tuple[int, str]], last: str, others: list[str], index: int) -> None:
    assert next_group(waiting, last, others) == index


def test_group_stays_on_its_worker() -> None:
    ids = ["a@1", "b@2", "c@1", "d@2", "e@2"]
    groups, workers = Groups(2, lambda one: one.partition("@")[2], set()), [FakeWorker(), FakeWorker()]
    for worker in workers:
        groups.add_node(worker)
        groups.add_node_collection(worker, ids)
    groups.schedule()
    assert [worker.given for worker in workers] == [[1, 3], [0, 2]]
    groups.mark_test_complete(workers[0], 1)
    groups.mark_test_complete(workers[1], 0)
    assert [worker.given for worker in workers] == [[1, 3, 4], [0, 2]]
    assert [worker.shutting_down for worker in workers] == [False, True]


def test_workers_with_other_cases_are_refused() -> None:
    groups = Groups(2, str, set())
    groups.add_node_collection(FakeWorker(SimpleNamespace(id="gw0")), ["a"])
    with pytest.raises(pytest.UsageError, match="gw1 collected other cases"):
        groups.add_node_collection(FakeWorker(SimpleNamespace(id="gw1")), ["b"])


def test_workers_receive_the_secrets_of_the_session(tmp_path: Path) -> None:
    """Those of the run among them, which the controller received itself."""
    controlled: Any = SimpleNamespace(planned=[], run_folder=tmp_path, secrets=("hunter2-hunter2",))
    controller = Controller(controlled)
    node: Any = SimpleNamespace(workerinput={})
    controller.pytest_configure_node(node)
    sender = Sender(json.loads(node.workerinput[HANDED])["relay"], lambda: None)
    assert sender.secrets == ("hunter2-hunter2",)
    sender.close()
    controller._relay.__exit__(None, None, None)
