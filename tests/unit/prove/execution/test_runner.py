"""A run: every planned case is in the report exactly once, also if the engine fails."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from matrix.ground.cases.cells import plan_case
from matrix.ground.catalog.codec import decode, encode
from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.machine import Cuda, Gpu, Machine
from matrix.ground.catalog.stack import DRIVER, SM
from matrix.ground.errors import ExitStatus, MatrixError
from matrix.ground.verdicts.outcome import Outcome, OutcomeKind, Raised
from matrix.ground.verdicts.planned import Kind, Planned
from matrix.ground.verdicts.record import Record, Verdict
from matrix.prove.execution.runner import Events, Request, earlier, execute, exit_status
from matrix.prove.planning.night import everything
from matrix.prove.provision import host
from matrix.prove.provision.host import LocalSite
from matrix.prove.store import journal
from matrix.prove.store.history import History
from matrix.prove.store.paths import Paths
from matrix.prove.store.stored_run import Night, StoredRun
from matrix.show import run_summary, site
from tests.unit.catalogs import case, catalog, clause, failure, image, planned, real, values
from tests.unit.engines import HOST, FakeEngine, make_environment
from tests.unit.show.samples import record

MADE = (case("tp2"), case("pp2"), case("card", (Level.GPU,), ranks=1))
ENTRY = failure(affected=(clause(mcore="<0.9"),), works=(clause(mcore=">=0.9"),), case=MADE)
KNOWN = catalog(ENTRY, torches=("2.3.1", "2.4.0"), containers=(image("ngc-24.07", "2.4.0a0+3bcc3cddb5"),))
CASES = everything(KNOWN, (Level.CPU,))
KEYS = [item.key for item in CASES]
ON_GPU = planned(KNOWN, level=Level.GPU, gpus=2)
STRANGE = Outcome(OutcomeKind.RAISED, "rank 0 raised: KeyError", 0, chain=(Raised("KeyError", "'loss'"),))


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set up a host without GPUs and a folder for environments."""
    monkeypatch.setattr(host, "look", lambda: HOST)
    monkeypatch.setenv("BASES_OF_TESTS", str(tmp_path / "bases"))


class Runs:
    """Starts runs in one folder, and keeps the shown records and the warnings."""

    def __init__(self, out: Path) -> None:
        self.out, self.shown, self.warned = out, list[Record](), list[str]()

    def run(self, engine: FakeEngine, planned: list[Planned] = CASES, **request: object) -> Night:
        options = Request(planned, self.out, **request)  # type: ignore[arg-type]
        events = Events(self.shown.append, warn=self.warned.append, ended=self.report)
        return execute(options, KNOWN, engine, events)

    def report(self, run: StoredRun, history: History) -> Night:
        return site.render(run, self.out, history, KNOWN)

    def stored(self) -> StoredRun:
        return earlier(self.out, self.folder().name)

    def folder(self, label: str = "night") -> Path:
        (folder,) = Paths(self.out).run("").glob(f"*-{label}")
        return folder


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path / "out")


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """Make the environments of both bases."""
    for torch in ("2.3.1", "2.4.0"):
        make_environment(tmp_path / "bases" / f"torch-{torch}", {"torch": torch, "numpy": "1.26.4"})
    return tmp_path / "bases"


def test_each_planned_case_runs_and_is_reported_once(runs: Runs) -> None:
    engine = FakeEngine(KNOWN)
    night = runs.run(engine)
    assert engine.ran == KEYS
    assert [one.key for one in night.records] == KEYS
    assert sorted(KEYS) == sorted(one.key for one in runs.shown)
    assert {Verdict.REPRODUCED, Verdict.HOLDS} == {one.verdict for one in night.records}
    assert (exit_status(night), runs.warned) == (0, [])


def test_engine_gets_each_base_once_and_a_log(runs: Runs) -> None:
    engine = FakeEngine(KNOWN)
    runs.run(engine)
    assert engine.bases == ["torch-2.3.1", "torch-2.4.0"]
    assert (runs.folder() / "engine.log").read_text() == "what pytest printed\n"


def test_secrets_are_masked_in_the_engine_log(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INDEX_TOKEN", "pytest printed")
    runs.run(FakeEngine(KNOWN))
    assert (runs.folder() / "engine.log").read_text() == "what [masked]\n"


def test_unavailable_cases_are_recorded_without_the_engine(runs: Runs) -> None:
    engine = FakeEngine(KNOWN, lack="ngc-24.07 is an image: needs podman")
    on_image = planned(KNOWN, base="ngc-24.07", source="megatron-lm@abc")
    night = runs.run(engine, [ON_GPU, on_image, planned(KNOWN, reproducible=False)])
    assert [one.outcome.reason for one in night.records] == [
        "needs 2 GPUs; host has 0",
        "ngc-24.07 is an image: needs podman",
        "the catalog has no reproduction of it yet",
    ]
    assert {Verdict.UNAVAILABLE} == {one.verdict for one in night.records}
    assert [[(lack.kind, lack.name) for lack in one.outcome.lacks] for one in night.records] == [
        [(Kind.GPUS, "")],
        [(Kind.BASE, "ngc-24.07"), (Kind.CLONE, "megatron-lm")],
        [(Kind.REPRODUCTION, "")],
    ]
    assert (engine.bases, exit_status(night)) == ([], ExitStatus.NOTHING)
    assert len(runs.shown) == 3


@pytest.mark.parametrize(
    ("verdicts", "status", "whole"),
    [
        ([Verdict.HOLDS, Verdict.REPRODUCED], ExitStatus.GOOD, ExitStatus.GOOD),
        ([Verdict.HOLDS, Verdict.UNAVAILABLE], ExitStatus.GOOD, ExitStatus.NOTHING),
        ([Verdict.UNAVAILABLE], ExitStatus.NOTHING, ExitStatus.NOTHING),
        ([], ExitStatus.NOTHING, ExitStatus.NOTHING),
        ([Verdict.VANISHED, Verdict.UNAVAILABLE], ExitStatus.BAD, ExitStatus.BAD),
        ([Verdict.HOLDS, Verdict.NOT_REACHED], ExitStatus.BAD, ExitStatus.BAD),
    ],
)
def test_whole_run_needs_each_case_s_result(verdicts: list[Verdict], status: ExitStatus, whole: ExitStatus) -> None:
    night: Any = SimpleNamespace(records=[SimpleNamespace(verdict=verdict) for verdict in verdicts], missing=())
    assert (exit_status(night), exit_status(night, whole=True)) == (status, whole)


def test_an_image_and_its_gpus_are_both_missing(runs: Runs) -> None:
    """The reason is the image, and nothing states that it alone helps."""
    on_gpus = planned(KNOWN, base="ngc-24.07", level=Level.GPU, gpus=2)
    (one,) = runs.run(FakeEngine(KNOWN, lack="needs podman"), [on_gpus]).records
    assert one.outcome.reason == "needs podman"
    assert {Kind.BASE, Kind.GPUS} <= {lack.kind for lack in one.outcome.lacks}
    assert decode(Outcome, json.loads(json.dumps(encode(one.outcome)))) == one.outcome


def test_refused_base_is_unavailable_and_others_run(runs: Runs) -> None:
    """A base that can't be started is a fault of the machine: its cases do not fail, and the night finishes."""
    refused = {"torch-2.4.0": "podman could not run torch-2.4.0: no such image"}
    first = [item for item in CASES if item.cell.base == "torch-2.3.1"]
    engine = FakeEngine(KNOWN, limit=len(first), status=125, refused=refused)
    night = runs.run(engine)
    lost = [one for one in night.records if one.cell.base == "torch-2.4.0"]
    assert {one.outcome.reason for one in lost} == {refused["torch-2.4.0"]}
    assert Counter(one.verdict for one in night.records)[Verdict.UNAVAILABLE] == len(lost) == len(CASES) - len(first)
    assert runs.warned == []


def test_same_content_is_read_from_the_history(runs: Runs, built: Path) -> None:
    first = runs.run(FakeEngine(KNOWN), label="first")
    engine = FakeEngine(KNOWN)
    second = runs.run(engine, label="second")
    assert engine.ran == []
    assert [first.run] * len(KEYS) == [one.cached_from for one in second.records]
    assert [one.verdict for one in first.records] == [one.verdict for one in second.records]
    assert {second.run} == {one.run for one in second.records}


def test_cached_verdicts_have_the_planned_cell(runs: Runs, built: Path) -> None:
    """The history may hold the record of a machine with another GPU."""
    runs.run(FakeEngine(KNOWN))
    runs.shown.clear()
    with_hardware = [replace(item, cell=item.cell.with_({SM: "8.0"})) for item in CASES]
    runs.run(FakeEngine(KNOWN), with_hardware)
    assert [(one.cell.stack[SM], bool(one.cached_from)) for one in runs.shown] == [("8.0", True)] * len(CASES)


def test_changed_package_runs_cases_again(runs: Runs, built: Path) -> None:
    runs.run(FakeEngine(KNOWN), label="first")
    make_environment(built / "torch-2.4.0", {"psutil": "7.2.2"})
    engine = FakeEngine(KNOWN)
    runs.run(engine, label="second")
    assert [key for key in KEYS if key.startswith("torch-2.4.0/")] == engine.ran


def test_run_without_cache_runs_all_cases(runs: Runs, built: Path) -> None:
    runs.run(FakeEngine(KNOWN), label="first")
    engine = FakeEngine(KNOWN)
    runs.run(engine, label="second", cache=False)
    assert engine.ran == KEYS


def test_red_is_never_read_from_the_history(runs: Runs, built: Path) -> None:
    first = runs.run(FakeEngine(KNOWN, ends=lambda _: STRANGE), label="first")
    engine = FakeEngine(KNOWN)
    runs.run(engine, label="second")
    assert (exit_status(first), engine.ran) == (1, KEYS)


def test_missing_environment_has_no_cached_verdicts(runs: Runs) -> None:
    runs.run(FakeEngine(KNOWN), label="first")
    engine = FakeEngine(KNOWN)
    runs.run(engine, label="second")
    assert engine.ran == KEYS


def test_dead_engine_leaves_cases_not_reached(runs: Runs) -> None:
    night = runs.run(FakeEngine(KNOWN, limit=3, status=137))
    verdicts = [one.verdict for one in night.records]
    assert [one.key for one in night.records] == KEYS
    assert [Verdict.NOT_REACHED] * (len(KEYS) - 3) == verdicts[3:]
    assert Verdict.NOT_REACHED not in verdicts[:3]
    assert night.records[3].outcome.reason.endswith("never finished: the run was interrupted")
    assert exit_status(night) == 1
    (warning,) = runs.warned
    assert f"{len(KEYS) - 3} of {len(KEYS)} cases were not reached: the engine ended with 137" in warning
    assert str(runs.folder() / "engine.log") in warning


def test_engine_without_results_is_not_green(runs: Runs) -> None:
    night = runs.run(FakeEngine(KNOWN, limit=0))
    assert {Verdict.NOT_REACHED} == {one.verdict for one in night.records}
    assert exit_status(night) == 1


@pytest.mark.parametrize("limit", [0, 1, 5])
def test_resume_runs_only_the_remaining_cases(runs: Runs, limit: int) -> None:
    runs.run(FakeEngine(KNOWN, limit=limit, status=137))
    engine = FakeEngine(KNOWN)
    night = runs.run(engine, [], resume=runs.stored())
    assert KEYS[limit:] == engine.ran
    assert [one.key for one in night.records] == KEYS
    assert (runs.folder().name, 0) == (night.run, exit_status(night))


def test_resume_of_a_finished_run_runs_nothing(runs: Runs) -> None:
    runs.run(FakeEngine(KNOWN))
    engine = FakeEngine(KNOWN)
    assert len(KEYS) == len(runs.run(engine, [], resume=runs.stored()).records)
    assert engine.bases == []


def test_resume_adds_no_second_result(runs: Runs) -> None:
    runs.run(FakeEngine(KNOWN, limit=3, status=137))
    runs.run(FakeEngine(KNOWN), [], resume=runs.stored())
    lines = [line for path in runs.folder().glob("journal-*.jsonl") for line in path.read_text().splitlines()]
    results = [json.loads(line)["result"] for line in lines if '"result"' in line]
    assert sorted(KEYS) == sorted(decode(Record, result).key for result in results)


def lease(sm: str) -> LocalSite:
    """Return a machine with one GPU of this compute capability."""
    return LocalSite(Machine("580.159.04", 1), user_mode=lambda: Cuda("13.0", gpus=(Gpu(f"card {sm}", sm),)))


def test_leases_of_two_machines_are_one_run(runs: Runs, tmp_path: Path) -> None:
    """The first ends after one case, lacks the GPU of another, and finds a third unavailable in its ranks."""
    cases = [item for item in everything(KNOWN, (Level.GPU,)) if item.cell.base.startswith("torch")][:5]
    cases[4] = replace(cases[4], cell=cases[4].cell.with_(values(sm="10.0")))
    keys, lacking = [item.key for item in cases], Outcome(OutcomeKind.UNAVAILABLE, "NCCL did not start")
    first, second = lease("9.0"), lease("10.0")
    engine = FakeEngine(KNOWN, limit=2, status=137, machine=first.text)
    engine.ends = lambda item: lacking if item.key == keys[1] else engine.as_expected(item)
    runs.run(engine, cases, site=first)
    again = FakeEngine(KNOWN, machine=first.text, limit=0, status=137)
    runs.run(again, [], resume=runs.stored(), site=first)
    assert (engine.ran, again.ran) == (keys[:2], [])  # the same machine does not run it again

    moved = Runs(tmp_path / "moved")
    shutil.copytree(runs.out, moved.out)
    other = FakeEngine(KNOWN, machine=second.text)
    night = moved.run(other, [], resume=moved.stored(), site=second)
    assert other.ran == keys[1:]
    assert [one.key for one in night.records] == keys
    assert [one.resolved["machine"] for one in night.records] == [first.text, *[second.text] * 4]
    page, rows = run_summary.page(night), (moved.out / "index.html").read_text()
    assert (f"1. {first.text}: 1 case " in page, f"2. {second.text}: 4 cases" in page) == (True, True)
    assert (rows.count(f"<br>{first.text}"), rows.count(f"<br>{second.text}")) == (1, 4)


def test_unknown_run_raises_with_the_nearest_name(runs: Runs) -> None:
    runs.run(FakeEngine(KNOWN))
    with pytest.raises(MatrixError) as caught:
        earlier(runs.out, runs.folder().name[:-1])
    assert ("no such run", f"did you mean {runs.folder().name}?") == (caught.value.what, caught.value.fix)


def test_ctrl_c_writes_the_report(runs: Runs) -> None:
    with pytest.raises(KeyboardInterrupt):
        runs.run(FakeEngine(KNOWN, limit=2, status=KeyboardInterrupt()))
    paths = Paths(runs.out)
    assert len(KEYS) == paths.junit.read_text().count("<testcase ")
    assert "not-reached" in paths.page.read_text()
    assert len(journal.read(runs.folder()).results) == 2


def test_ctrl_c_can_be_resumed(runs: Runs) -> None:
    with pytest.raises(KeyboardInterrupt):
        runs.run(FakeEngine(KNOWN, limit=2, status=KeyboardInterrupt()))
    engine = FakeEngine(KNOWN)
    night = runs.run(engine, [], resume=runs.stored())
    assert (KEYS[2:], 0) == (engine.ran, exit_status(night))


def test_time_limit_leaves_cases_not_reached(runs: Runs) -> None:
    """The run ends as after Ctrl-C, with a report and an exit status of its own; --resume runs the rest."""

    def ends(item: Planned) -> Outcome:
        if item.key == KEYS[2]:
            signal.raise_signal(signal.SIGALRM)
        return FakeEngine(KNOWN).as_expected(item)

    night = runs.run(FakeEngine(KNOWN, ends=ends), limit_s=3600.0)
    assert [one.verdict for one in night.records[2:]] == [Verdict.NOT_REACHED] * (len(KEYS) - 2)
    assert Verdict.NOT_REACHED not in {one.verdict for one in night.records[:2]}
    assert exit_status(night) == 1
    left = len(KEYS) - 2
    assert runs.warned == [f"{left} of {len(KEYS)} cases were not reached within the time limit; --resume runs them"]
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    engine = FakeEngine(KNOWN)
    runs.run(engine, [], resume=runs.stored())
    assert engine.ran == KEYS[2:]


def test_run_of_a_failed_engine_is_reported(runs: Runs) -> None:
    engine = FakeEngine(KNOWN, limit=0, status=MatrixError("uv failed"))
    with pytest.raises(MatrixError, match="uv failed"):
        runs.run(engine)
    assert Paths(runs.out).page.is_file()
    assert runs.folder().is_dir()


def test_unready_engine_leaves_no_run(runs: Runs) -> None:
    engine = FakeEngine(KNOWN, unready=MatrixError("uv is required"))
    with pytest.raises(MatrixError, match="uv is required"):
        runs.run(engine)
    assert list(Paths(runs.out).run("").glob("*")) == []
    assert (runs.shown, engine.bases) == ([], [])


def test_engine_that_starts_nothing_leaves_no_run(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """It raises before it has written a log."""

    def refuse(*_: object) -> None:
        raise MatrixError("the queue refuses it")

    engine = FakeEngine(KNOWN)
    monkeypatch.setattr(engine, "run", refuse)
    with pytest.raises(MatrixError, match="the queue refuses it"):
        runs.run(engine)
    assert list(Paths(runs.out).run("").glob("*")) == []
    assert not Paths(runs.out).page.exists()


def test_resumed_run_that_can_not_start_is_kept(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    runs.run(FakeEngine(KNOWN, limit=1, status=137))
    (runs.folder() / "engine.log").unlink()

    def refuse(*_: object) -> None:
        raise MatrixError("the queue refuses it")

    engine = FakeEngine(KNOWN)
    monkeypatch.setattr(engine, "run", refuse)
    with pytest.raises(MatrixError):
        runs.run(engine, [], resume=runs.stored())
    assert len(journal.read(runs.folder()).results) == 1


def test_unreadable_history_does_not_stop_a_night(runs: Runs) -> None:
    runs.out.mkdir()
    Paths(runs.out).history.write_text(broken := "this is no database, and longer than the header of one " * 4)
    night = runs.run(FakeEngine(KNOWN))
    assert (len(night.records), exit_status(night)) == (len(KEYS), 0)
    (warning,) = runs.warned
    assert "the history can't be used" in warning
    assert "move it away" in warning
    assert Paths(runs.out).page.is_file()
    assert Paths(runs.out).history.read_text() == broken


def test_file_named_runs_raises(runs: Runs) -> None:
    runs.out.mkdir()
    (runs.out / "runs").touch()
    with pytest.raises(MatrixError, match="can't be written"):
        runs.run(FakeEngine(KNOWN))


def test_unwritable_lock_raises(runs: Runs) -> None:
    runs.run(FakeEngine(KNOWN, limit=1, status=137))
    (runs.folder() / "lock").unlink()
    (runs.folder() / "lock").mkdir()
    with pytest.raises(MatrixError, match="can't be written"):
        runs.run(FakeEngine(KNOWN), [], resume=runs.stored())


@pytest.mark.parametrize("verdict", list(Verdict))
def test_exit_status_for_red_and_not_reached(verdict: Verdict) -> None:
    bad = verdict.colour in ("red", "not-reached")
    assert int(bad) == exit_status(Night("run-1", (record(Verdict.HOLDS), record(verdict))))


@pytest.mark.parametrize("records", [(), (record(Verdict.UNAVAILABLE),)])
def test_run_without_results_is_not_green(records: tuple[Record, ...]) -> None:
    assert exit_status(Night("run-1", records)) == ExitStatus.NOTHING


def test_too_old_driver_names_a_sufficient_one(runs: Runs) -> None:
    """Checked before the image is used: CUDA 12.4 on driver 510, which its compat package does not support."""
    entry = failure(case=(case(levels=(Level.GPU,)),))
    known = replace(real(), failures=(entry,))
    cell = known.cell("ngc-24.03", {DRIVER: "510.39.01"})
    item = plan_case(known, entry, entry.case[0], Level.GPU, cell)
    place = replace(HOST, machine=replace(HOST.machine, listed=8, driver="510.39.01"))
    night = execute(Request([item], runs.out, site=place), known, FakeEngine(known))
    assert [record.verdict for record in night.records] == [Verdict.UNAVAILABLE]
    assert "driver 510.39.01 is too old" in night.records[0].outcome.reason
    assert night.records[0].outcome.reason.endswith("driver 535 would do")


@pytest.mark.parametrize("attach", [False, True])
def test_resume_beside_a_live_run_is_refused(runs: Runs, attach: bool) -> None:
    """From its plan to its report; `attach` is the resume of a Slurm run."""
    refused: list[MatrixError] = []

    def resume(*_: object) -> None:
        with pytest.raises(MatrixError, match="another process works on this run") as caught:
            execute(Request(out=runs.out, resume=runs.stored(), attach=attach), KNOWN, FakeEngine(KNOWN))
        refused.append(caught.value)

    engine = FakeEngine(KNOWN)

    def ends(item: Planned) -> Outcome:
        resume()
        return engine.as_expected(item)

    engine.ends = ends

    def report(run: StoredRun, history: History) -> Night:
        resume()
        return site.render(run, runs.out, history, KNOWN)

    execute(Request(CASES, runs.out), KNOWN, engine, Events(ended=report))
    assert len(refused) == len(KEYS) + 1
    assert f"kill -INT {os.getpid()}" in str(refused[0].fix)
    assert engine.ran == KEYS
    assert runs.run(FakeEngine(KNOWN), [], resume=runs.stored()).run == runs.folder().name


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"failure": "nothing"}, "no such failure"),
        ({"case": "tp9"}, "does not have this planned case"),
        ({"ranks": 10**9}, "does not have this planned case"),
        ({"level": "gpu"}, "does not have this planned case"),
        ({"base": "torch-9"}, "no such base"),
    ],
)
def test_resume_refuses_a_plan_that_can_not_run(runs: Runs, changes: dict[str, Any], words: str) -> None:
    runs.run(FakeEngine(KNOWN, limit=0, status=137))
    plan = runs.folder() / "plan.json"
    entries = json.loads(plan.read_text())
    entry = entries[0] | changes
    entry["cell"]["base"] = changes.get("base", entry["cell"]["base"])
    item = replace(CASES[0], failure=entry["failure"], case=entry["case"], level=Level(entry["level"]))
    item = replace(item, cell=replace(item.cell, base=entry["cell"]["base"]))
    entry = {name: value for name, value in entry.items() if name != "base"}
    plan.write_text(json.dumps([entry | {"key": item.key}, *entries[1:]]))
    engine = FakeEngine(KNOWN)
    with pytest.raises(MatrixError, match=words):
        runs.run(engine, [], resume=runs.stored())
    assert engine.ran == []


def test_set_back_clock_keeps_the_order_of_runs(tmp_path: Path) -> None:
    """Run ids contain the time; the newest is the one that was made last."""
    paths = Paths(tmp_path)
    for future in ("29990131T020000000000Z-night", "not-a-run"):
        paths.run(future).mkdir(parents=True)
        (paths.run(future) / "plan.json").write_text("[]")
    made = []
    for label in ("night", "select", "night"):
        made.append(paths.new_run(label).name)
        (paths.run(made[-1]) / "plan.json").write_text("[]")
    assert paths.runs() == ["29990131T020000000000Z-night", *made, "not-a-run"]


def test_run_without_a_plan_is_not_the_newest(tmp_path: Path) -> None:
    """Its process was killed before the run had a plan."""
    paths = Paths(tmp_path)
    first = paths.new_run("night")
    (first / "plan.json").write_text("[]")
    assert paths.new_run("night").name > first.name
    assert paths.runs() == [first.name]
