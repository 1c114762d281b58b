"""A run: every planned case ends in the report exactly once, whatever becomes of the engine."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from matrix.catalog.failure import Level
from matrix.errors import MatrixError
from matrix.execution.run import Request, as_line, execute, exit_status
from matrix.planning.cases import plan_case
from matrix.planning.night import everything
from matrix.planning.planned import Planned
from matrix.provision import host
from matrix.report import output
from matrix.store import journal
from matrix.store.history import History
from matrix.store.night import Night
from matrix.store.paths import Paths
from matrix.verdicts.outcome import Outcome, OutcomeKind, Raised
from matrix.verdicts.record import Record, Verdict
from tests.unit.catalogs import case, catalog, clause, failure, image, planned, real
from tests.unit.engines import HOST, FakeEngine, make_environment
from tests.unit.report.samples import record

ENTRY = failure(affected=(clause(mcore="<0.9"),), works=(clause(mcore=">=0.9"),), case=(case("tp2"), case("pp2")))
KNOWN = catalog(ENTRY, torches=("2.3.1", "2.4.0"), containers=(image("ngc-24.07", "2.4.0a0+3bcc3cddb5"),))
CASES = everything(KNOWN, (Level.CPU,))
KEYS = [item.key for item in CASES]
ON_GPU = planned(KNOWN, level=Level.GPU, gpus=2)
STRANGE = Outcome(OutcomeKind.RAISED, "rank 0 raised: KeyError", 0, chain=(Raised("KeyError", "'loss'"),))


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host without GPUs, and tox environments in a folder of the test's own."""
    monkeypatch.setattr(host, "look", lambda: HOST)
    monkeypatch.setenv("TOX_WORK_DIR", str(tmp_path / "tox"))


class Desk:
    """Who asks for runs: the folder they go to, what was shown and what was warned of."""

    def __init__(self, out: Path) -> None:
        self.out, self.shown, self.warned = out, list[Record](), list[str]()

    def run(self, engine: FakeEngine, planned: list[Planned] = CASES, **request: object) -> Night:
        asked = Request(planned, self.out, **request)  # type: ignore[arg-type]
        return execute(asked, KNOWN, engine, self.shown.append, self.warned.append, report=self.report)

    def report(self, folder: Path, history: History) -> Night:
        return output.render(folder, self.out, history, KNOWN)

    def folder(self, label: str = "night") -> Path:
        (folder,) = Paths(self.out).run("").glob(f"*-{label}")
        return folder


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path / "out")


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """Environments of both bases, as tox would have left them."""
    for torch in ("2.3.1", "2.4.0"):
        make_environment(tmp_path / "tox" / f"torch{torch}", {"torch": torch, "numpy": "1.26.4"})
    return tmp_path / "tox"


def test_every_planned_case_runs_once_and_is_reported_once(desk: Desk) -> None:
    engine = FakeEngine(KNOWN)
    told = desk.run(engine)
    assert engine.ran == KEYS
    assert [one.key for one in told.records] == KEYS
    assert sorted(KEYS) == sorted(one.key for one in desk.shown)
    assert {Verdict.REPRODUCED, Verdict.HOLDS} == {one.verdict for one in told.records}
    assert (exit_status(told.records), desk.warned) == (0, [])


def test_the_engine_gets_each_base_once_and_a_log(desk: Desk) -> None:
    engine = FakeEngine(KNOWN)
    desk.run(engine)
    assert engine.bases == ["torch-2.3.1", "torch-2.4.0"]
    assert (desk.folder() / "engine.log").read_text() == "what tox printed\n"


def test_the_engine_s_log_keeps_no_secret_of_the_environment(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INDEX_TOKEN", "tox printed")
    desk.run(FakeEngine(KNOWN))
    assert (desk.folder() / "engine.log").read_text() == "what [masked]\n"


def test_what_can_not_run_here_is_recorded_without_the_engine(desk: Desk) -> None:
    engine = FakeEngine(KNOWN, lack="ngc-24.07 is an image: needs podman")
    on_image = planned(KNOWN, base="ngc-24.07")
    told = desk.run(engine, [ON_GPU, on_image, planned(KNOWN, reproducible=False)])
    assert [one.outcome.reason for one in told.records] == [
        "needs 2 GPUs; host has 0",
        "ngc-24.07 is an image: needs podman",
        "the catalog has no reproduction of it yet",
    ]
    assert {Verdict.UNAVAILABLE} == {one.verdict for one in told.records}
    assert (engine.bases, exit_status(told.records)) == ([], 0)
    assert len(desk.shown) == 3


def test_what_an_engine_refused_is_unavailable_and_the_rest_ran(desk: Desk) -> None:
    """A base that can't be started is a fault of the machine: its cases are never failures, and the night finishes."""
    refused = {"torch-2.4.0": "podman could not run torch-2.4.0: no such image"}
    first = [item for item in CASES if item.cell.base == "torch-2.3.1"]
    engine = FakeEngine(KNOWN, limit=len(first), status=125, refused=refused)
    told = desk.run(engine)
    lost = [one for one in told.records if one.cell.base == "torch-2.4.0"]
    assert {one.outcome.reason for one in lost} == {refused["torch-2.4.0"]}
    assert Counter(one.verdict for one in told.records)[Verdict.UNAVAILABLE] == len(lost) == len(CASES) - len(first)
    assert desk.warned == []


def test_the_same_content_is_served_from_the_history(desk: Desk, built: Path) -> None:
    first = desk.run(FakeEngine(KNOWN), label="first")
    engine = FakeEngine(KNOWN)
    second = desk.run(engine, label="second")
    assert engine.ran == []
    assert [first.run] * len(KEYS) == [one.cached_from for one in second.records]
    assert [one.verdict for one in first.records] == [one.verdict for one in second.records]
    assert {second.run} == {one.run for one in second.records}


def test_cached_verdicts_have_the_planned_cell(desk: Desk, built: Path) -> None:
    """The history of an earlier version holds records without the axes python, sm and gpus."""
    desk.run(FakeEngine(KNOWN))
    desk.shown.clear()
    with_hardware = [replace(item, cell=replace(item.cell, sm="8.0")) for item in CASES]
    desk.run(FakeEngine(KNOWN), with_hardware)
    assert [(one.cell.sm, bool(one.cached_from)) for one in desk.shown] == [("8.0", True)] * len(CASES)


def test_another_package_in_a_base_runs_its_cases_again(desk: Desk, built: Path) -> None:
    desk.run(FakeEngine(KNOWN), label="first")
    make_environment(built / "torch2.4.0", {"psutil": "7.2.2"})
    engine = FakeEngine(KNOWN)
    desk.run(engine, label="second")
    assert [key for key in KEYS if key.startswith("torch-2.4.0/")] == engine.ran


def test_without_the_cache_everything_runs_again(desk: Desk, built: Path) -> None:
    desk.run(FakeEngine(KNOWN), label="first")
    engine = FakeEngine(KNOWN)
    desk.run(engine, label="second", cache=False)
    assert engine.ran == KEYS


def test_red_is_never_served_from_the_history(desk: Desk, built: Path) -> None:
    first = desk.run(FakeEngine(KNOWN, ends=lambda _: STRANGE), label="first")
    engine = FakeEngine(KNOWN)
    desk.run(engine, label="second")
    assert (exit_status(first.records), engine.ran) == (1, KEYS)


def test_a_base_that_is_not_built_yet_has_nothing_to_serve(desk: Desk) -> None:
    desk.run(FakeEngine(KNOWN), label="first")
    engine = FakeEngine(KNOWN)
    desk.run(engine, label="second")
    assert engine.ran == KEYS


def test_an_engine_that_dies_leaves_the_rest_not_reached(desk: Desk) -> None:
    told = desk.run(FakeEngine(KNOWN, limit=3, status=137))
    verdicts = [one.verdict for one in told.records]
    assert [one.key for one in told.records] == KEYS
    assert [Verdict.NOT_REACHED] * (len(KEYS) - 3) == verdicts[3:]
    assert Verdict.NOT_REACHED not in verdicts[:3]
    assert told.records[3].outcome.reason.endswith("never finished: the run was interrupted")
    assert exit_status(told.records) == 1
    (warning,) = desk.warned
    assert f"{len(KEYS) - 3} of {len(KEYS)} cases were not reached: the engine ended with 137" in warning
    assert str(desk.folder() / "engine.log") in warning


def test_an_engine_that_never_comes_to_its_cases_is_not_green(desk: Desk) -> None:
    told = desk.run(FakeEngine(KNOWN, limit=0))
    assert {Verdict.NOT_REACHED} == {one.verdict for one in told.records}
    assert exit_status(told.records) == 1


@pytest.mark.parametrize("limit", [0, 1, 5])
def test_resuming_runs_only_what_is_left(desk: Desk, limit: int) -> None:
    desk.run(FakeEngine(KNOWN, limit=limit, status=137))
    engine = FakeEngine(KNOWN)
    told = desk.run(engine, [], resume=desk.folder().name)
    assert KEYS[limit:] == engine.ran
    assert [one.key for one in told.records] == KEYS
    assert (desk.folder().name, 0) == (told.run, exit_status(told.records))


def test_resuming_a_run_that_is_done_runs_nothing(desk: Desk) -> None:
    desk.run(FakeEngine(KNOWN))
    engine = FakeEngine(KNOWN)
    assert len(KEYS) == len(desk.run(engine, [], resume=desk.folder().name).records)
    assert engine.bases == []


def test_no_case_has_two_results_after_resuming(desk: Desk) -> None:
    desk.run(FakeEngine(KNOWN, limit=3, status=137))
    desk.run(FakeEngine(KNOWN), [], resume=desk.folder().name)
    lines = [line for path in desk.folder().glob("journal-*.jsonl") for line in path.read_text().splitlines()]
    results = [json.loads(line)["result"] for line in lines if '"result"' in line]
    assert sorted(KEYS) == sorted(Record.from_json(result).key for result in results)


def test_a_run_that_is_not_there_is_told_with_the_nearest(desk: Desk) -> None:
    desk.run(FakeEngine(KNOWN))
    with pytest.raises(MatrixError) as caught:
        desk.run(FakeEngine(KNOWN), resume=desk.folder().name[:-1])
    assert ("no such run", f"did you mean {desk.folder().name}?") == (caught.value.what, caught.value.fix)


def test_ctrl_c_still_makes_the_report(desk: Desk) -> None:
    with pytest.raises(KeyboardInterrupt):
        desk.run(FakeEngine(KNOWN, limit=2, status=KeyboardInterrupt()))
    paths = Paths(desk.out)
    assert len(KEYS) == paths.junit.read_text().count("<testcase ")
    assert "not-reached" in paths.page.read_text()
    assert len(journal.read(desk.folder()).results) == 2


def test_ctrl_c_can_be_resumed(desk: Desk) -> None:
    with pytest.raises(KeyboardInterrupt):
        desk.run(FakeEngine(KNOWN, limit=2, status=KeyboardInterrupt()))
    engine = FakeEngine(KNOWN)
    told = desk.run(engine, [], resume=desk.folder().name)
    assert (KEYS[2:], 0) == (engine.ran, exit_status(told.records))


def test_an_engine_that_fails_is_reported(desk: Desk) -> None:
    engine = FakeEngine(KNOWN, limit=0, status=MatrixError("tox failed"))
    with pytest.raises(MatrixError, match="tox failed"):
        desk.run(engine)
    assert Paths(desk.out).page.is_file()
    assert desk.folder().is_dir()


def test_an_unready_engine_leaves_no_run(desk: Desk) -> None:
    engine = FakeEngine(KNOWN, unready=MatrixError("tox is needed to run"))
    with pytest.raises(MatrixError, match="tox is needed to run"):
        desk.run(engine)
    assert list(Paths(desk.out).run("").glob("*")) == []
    assert (desk.shown, engine.bases) == ([], [])


def test_an_engine_that_starts_nothing_leaves_no_run(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """It raises before it has printed anything."""

    def refuses(*_: object) -> None:
        raise MatrixError("the queue refuses it")

    engine = FakeEngine(KNOWN)
    monkeypatch.setattr(engine, "run", refuses)
    with pytest.raises(MatrixError, match="the queue refuses it"):
        desk.run(engine)
    assert list(Paths(desk.out).run("").glob("*")) == []
    assert not Paths(desk.out).page.exists()


def test_a_resumed_run_that_can_not_start_stays(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.run(FakeEngine(KNOWN, limit=1, status=137))
    (desk.folder() / "engine.log").unlink()

    def refuses(*_: object) -> None:
        raise MatrixError("the queue refuses it")

    engine = FakeEngine(KNOWN)
    monkeypatch.setattr(engine, "run", refuses)
    with pytest.raises(MatrixError):
        desk.run(engine, [], resume=desk.folder().name)
    assert len(journal.read(desk.folder()).results) == 1


def test_an_unreadable_history_leaves_no_run(desk: Desk) -> None:
    desk.out.mkdir()
    Paths(desk.out).history.write_text("this is no database, and longer than the header of one " * 4)
    with pytest.raises(MatrixError, match="the history can't be used"):
        desk.run(FakeEngine(KNOWN))
    assert list(Paths(desk.out).run("").glob("*")) == []


def test_a_file_named_runs_is_an_error(desk: Desk) -> None:
    desk.out.mkdir()
    (desk.out / "runs").touch()
    with pytest.raises(MatrixError, match="can't be written"):
        desk.run(FakeEngine(KNOWN))


def test_an_unwritable_lock_is_an_error(desk: Desk) -> None:
    desk.run(FakeEngine(KNOWN, limit=1, status=137))
    (desk.folder() / "lock").unlink()
    (desk.folder() / "lock").mkdir()
    with pytest.raises(MatrixError, match="can't be written"):
        desk.run(FakeEngine(KNOWN), [], resume=desk.folder().name)


@pytest.mark.parametrize("verdict", list(Verdict))
def test_red_and_not_reached_end_with_1(verdict: Verdict) -> None:
    bad = verdict.colour in ("red", "not-reached")
    assert int(bad) == exit_status([record(Verdict.HOLDS), record(verdict)])


def test_no_records_are_no_failure() -> None:
    assert exit_status([]) == 0


def test_a_record_is_one_line_of_json() -> None:
    one = record(Verdict.UNEXPLAINED)
    assert "\n" not in as_line(one)
    assert one == Record.from_json(json.loads(as_line(one)))


def test_a_driver_that_is_too_old_for_an_image_is_unavailable_with_the_one_that_would_do(desk: Desk) -> None:
    """Before anything is asked of the image: CUDA 12.4 on driver 510, which its compat package refuses."""
    entry = failure(case=(case(levels=(Level.GPU,)),))
    known = replace(real(), failures=(entry,))
    cell = known.cell("ngc-24.03", driver="510.39.01")
    item = plan_case(known, entry, entry.case[0], Level.GPU, cell)
    there = replace(HOST, gpus=8, driver="510.39.01")
    told = execute(Request([item], desk.out), known, FakeEngine(known), desk.shown.append, desk.warned.append, there)
    assert [record.verdict for record in told.records] == [Verdict.UNAVAILABLE]
    assert "driver 510.39.01 is too old" in told.records[0].outcome.reason
    assert told.records[0].outcome.reason.endswith("driver 535 would do")
