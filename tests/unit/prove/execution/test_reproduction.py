"""One case in its cell: stored, run, judged; a second run never makes it green."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from matrix.ground.cases.machine_requirements import Placement
from matrix.ground.catalog.distributions import SharedNccl
from matrix.ground.catalog.failure import CaseNeed, Expectation, Level, Limits, StandIn
from matrix.ground.catalog.schema import Size
from matrix.ground.catalog.stack import WRITER_MCORE
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.outcome import Outcome, OutcomeKind, Raised, RankEnd
from matrix.ground.verdicts.planned import Planned, Reason, ReasonKind
from matrix.ground.verdicts.record import Record, Verdict
from matrix.prove.execution.ranks import supervisor
from matrix.prove.execution.ranks.rank_spec import RankJob
from matrix.prove.execution.reproduction import (
    CaseContext,
    Reproduction,
    brief,
    explain_red,
    hidden,
    provide_checkpoint,
    stand_ins,
)
from tests.unit.catalogs import case, catalog, clause, failure, planned, shown, values
from tests.unit.show.samples import record

STAND_IN = StandIn(clause(mcore="<0.9"), "imported unasked", ("apex",), ("apex.contrib",), {"apex.Norm": "tests:Norm"})
CASE = replace(case(), arguments={"tensor_parallel": 2}, limits=Limits(Size(2**30)))
THIS = failure(
    "this",
    affected=(clause(mcore="<0.9"),),
    works=(clause(mcore=">=0.9"),),
    stand_in=(STAND_IN,),
    case=(CASE,),
    folder=Path("failures/this"),
)
OTHER = failure("other")
KNOWN = catalog(THIS, OTHER)
PICKED = Reason(ReasonKind.PICKED, "a reason")
BROKEN, WORKS = planned(KNOWN, core="0.8.0", why=(PICKED,)), planned(KNOWN, core="0.9.0")
PASSED = Outcome(OutcomeKind.PASSED, seconds=1.0)
STRANGE = Outcome(OutcomeKind.RAISED, "rank 0 raised: KeyError: 'loss'", 0, chain=(Raised("KeyError", "'loss'"),))


class Bench:
    """A supervisor with fixed outcomes and a journal that stores its records."""

    def __init__(self, *outcomes: Outcome) -> None:
        self.outcomes, self.events, self.jobs, self.kept = list(outcomes), list[str](), list[RankJob](), list[Record]()

    def run(self, job: RankJob) -> Outcome:
        self.events.append("run fresh" if job.fresh else "run")
        self.jobs.append(job)
        return self.outcomes.pop(0)

    def started(self, key: str) -> str:
        self.events.append(f"started {key}")
        return "2026-01-31T02:00:00.000Z"

    def result(self, record: Record) -> str:
        self.events.append("result")
        self.kept.append(record)
        return "2026-01-31T02:00:01.000Z"


def run(bench: Bench, item: Planned = BROKEN, context: CaseContext | None = None) -> Record:
    context = context or CaseContext(log_dir=Path("logs"))
    record = Reproduction(item, THIS, (THIS, OTHER), context, bench.run, bench, unread).run()
    assert [record] == bench.kept
    return record


def unread() -> Outcome:
    pytest.fail("a case that runs is not read")


def test_start_and_record_are_stored() -> None:
    bench = Bench(shown(THIS))
    record = run(bench)
    assert [f"started {BROKEN.key}", "run", "result"] == bench.events
    assert (record.verdict, record.signature) == (Verdict.REPRODUCED, "broke")


def test_debugged_ranks_have_the_variables_of_sharing(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[RankJob] = []
    monkeypatch.setattr(supervisor, "debug", jobs.append)
    context = CaseContext(log_dir=Path("logs"), placement=Placement(1, "nccl", nccl=SharedNccl("2.30.7"), each=2))
    Reproduction(WORKS, THIS, (THIS, OTHER), context, Bench().run, Bench(), unread).debug()
    assert [job.env["NCCL_MULTI_RANK_GPU_ENABLE"] for job in jobs] == ["1"]


def test_record_contains_case_and_context() -> None:
    context = CaseContext(
        resolved={"torch": "2.4.0"}, content="c0de", notes=("another Python",), reproduce="megatrix run", run="a"
    )
    record = run(Bench(shown(THIS)), replace(BROKEN, notes=("twin of ngc-24.07",)), context)
    assert (BROKEN.key, Expectation.BROKEN, (PICKED,)) == (record.key, record.expectation, record.why)
    assert record.notes == ("twin of ngc-24.07", "another Python")
    assert (
        record.resolved,
        record.content,
        record.reproduce,
        record.run,
    ) == ({"torch": "2.4.0"}, "c0de", "megatrix run", "a")
    assert record.started == "2026-01-31T02:00:00.000Z"


def test_job_has_the_fields_of_the_case() -> None:
    context = CaseContext(path=("/overlay",), log_dir=Path("logs"), deadline_s=30.0)
    bench = Bench(PASSED)
    run(bench, WORKS, context)
    (job,) = bench.jobs
    assert ("failures/this/reproduction.py:run_tp2", 2, ("/overlay",), 30.0, Path("logs"), "cpu", False) == (
        job.target, job.world_size, job.path, job.deadline_s, job.log_dir, job.device, job.fresh,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("level", "te", "expected"),
    [
        (Level.CPU, "none", ("transformer_engine",)),
        (Level.CPU, "1.9", ()),
        (Level.GPU, "none", ("transformer_engine",)),
        (Level.CONTRACT, "none", ()),
    ],
)
def test_unused_transformer_engine_is_hidden(level: Level, te: str, expected: tuple[str, ...]) -> None:
    item = replace(WORKS, level=level, cell=WORKS.cell.with_(values(te=te)))
    assert expected == hidden(CASE, item)
    assert hidden(replace(CASE, needs=(CaseNeed.COMPILED_TE,)), item) == ()


@pytest.mark.parametrize("level", [Level.CPU, Level.GPU])
def test_stand_ins_apply_wherever_ranks_run(level: Level) -> None:
    """megatron-core <= 0.7 imports the packages on a GPU, too."""
    bench = Bench(shown(THIS))
    run(bench, replace(BROKEN, level=level))
    assert bench.jobs[0].stand_ins["packages"] == ["apex"]
    assert stand_ins(THIS, replace(CASE, needs=(CaseNeed.COMPILED_TE,)), replace(BROKEN, level=level)) == {}


def test_deadline_of_a_case_is_a_minimum() -> None:
    for deadline, expected in ((0, 120.0), (900, 900.0)):
        item = Reproduction(
            WORKS,
            replace(THIS, case=(replace(CASE, deadline=deadline),)),
            (),
            CaseContext(),
            Bench().run,
            Bench(),
            unread,
        )
        assert item.job.deadline_s == expected


def test_hidden_modules_are_in_the_job() -> None:
    bench = Bench(PASSED)
    run(bench, WORKS)
    assert bench.jobs[0].hidden == ("transformer_engine",)


def test_arguments_and_limits_are_in_the_job() -> None:
    bench = Bench(PASSED)
    run(bench, WORKS)
    assert (bench.jobs[0].limits, bench.jobs[0].kwargs) == (Limits(Size(2**30)), {"tensor_parallel": 2})


def test_function_of_another_module_is_the_target() -> None:
    other = replace(THIS, case=(replace(CASE, run="loop:train"),))
    made = Reproduction(WORKS, other, (other,), CaseContext(), Bench().run, Bench(), unread)
    assert made.job.target == "failures/this/loop.py:train"


def test_unset_limit_is_unavailable_without_a_retry() -> None:
    lacking = Outcome(OutcomeKind.UNAVAILABLE, "the address space (RLIMIT_AS) can't be limited")
    bench = Bench(lacking)
    record = run(bench)
    assert (record.verdict, record.outcome, len(bench.jobs)) == (Verdict.UNAVAILABLE, lacking, 1)


def test_gpu_job_is_on_cuda_with_its_backend() -> None:
    bench = Bench(shown(THIS))
    run(bench, replace(BROKEN, level=Level.GPU), CaseContext(placement=Placement(2, "nccl")))
    assert (bench.jobs[0].device, bench.jobs[0].backend) == ("cuda", "nccl")


def test_stand_ins_are_in_the_job() -> None:
    bench = Bench(shown(THIS))
    run(bench)
    stand_ins = {"packages": ["apex"], "missing": ["apex.contrib"], "provided": {"apex.Norm": "tests:Norm"}}
    assert stand_ins == bench.jobs[0].stand_ins


def test_cell_without_stand_in_gets_none() -> None:
    bench = Bench(PASSED)
    run(bench, WORKS)
    assert bench.jobs[0].stand_ins == {}


@pytest.mark.parametrize(
    ("item", "first", "second", "verdict", "note"),
    [
        (BROKEN, PASSED, PASSED, Verdict.VANISHED, "the same: passed"),
        (BROKEN, STRANGE, STRANGE, Verdict.UNEXPLAINED, "the same: rank 0 raised: KeyError: 'loss'"),
        (BROKEN, STRANGE, shown(THIS), Verdict.UNEXPLAINED, "DIFFERENT: rank 0 raised: this"),
        (BROKEN, STRANGE, shown(OTHER), Verdict.UNEXPLAINED, "DIFFERENT: rank 0 raised: other"),
        (WORKS, shown(THIS), PASSED, Verdict.REGRESSED, "DIFFERENT: passed"),
        (WORKS, STRANGE, PASSED, Verdict.UNEXPLAINED, "DIFFERENT: passed"),
    ],
)
def test_red_runs_again_fresh_and_stays_red(
    item: Planned, first: Outcome, second: Outcome, verdict: Verdict, note: str
) -> None:
    bench = Bench(first, second)
    record = run(bench, item)
    assert bench.events[1:] == ["run", "run fresh", "result"]
    assert (verdict, "red") == (record.verdict, record.verdict.colour)
    assert (f"run again in fresh interpreters: {note}",) == record.outcome.attempts
    assert record.outcome.attempts[-1] in record.notes
    assert first.kind is record.outcome.kind


@pytest.mark.parametrize(
    ("race", "item", "second", "verdict"),
    [
        (True, WORKS, PASSED, Verdict.HOLDS),
        (True, BROKEN, shown(THIS), Verdict.REPRODUCED),
        (True, BROKEN, PASSED, Verdict.VANISHED),
        (True, WORKS, shown(OTHER), Verdict.UNEXPLAINED),  # the race once more
        (False, WORKS, PASSED, Verdict.UNEXPLAINED),
    ],
)
def test_the_run_after_a_race_is_judged(race: bool, item: Planned, second: Outcome, verdict: Verdict) -> None:
    bench = Bench(shown(OTHER), second)
    catalog = (THIS, replace(OTHER, race=race))
    context = CaseContext(log_dir=Path("logs"))
    record = Reproduction(item, THIS, catalog, context, bench.run, bench, unread).run()
    assert bench.events[1:] == ["run", "run fresh", "result"]
    assert record.verdict is verdict
    assert ("ran again: the first run ended in the race other: rank 0 raised: other" in record.notes) is race


def test_a_fresh_process_is_not_repeated() -> None:
    """A case without preload only starts another process: a second run would be the same."""
    bench = Bench(STRANGE)
    own = replace(THIS, case=(replace(CASE, preload=False),))
    record = Reproduction(BROKEN, own, (own,), CaseContext(), bench.run, bench, unread).run()
    assert bench.events[1:] == ["run", "result"]
    assert record.outcome.attempts == ()


def test_fresh_run_has_its_own_log_folder() -> None:
    bench = Bench(STRANGE, STRANGE)
    run(bench)
    assert [Path("logs"), Path("logs/fresh")] == [job.log_dir for job in bench.jobs]
    assert replace(bench.jobs[0], fresh=True, log_dir=Path("logs/fresh")) == bench.jobs[1]


@pytest.mark.parametrize(("item", "outcome"), [(BROKEN, shown(THIS)), (WORKS, PASSED)])
def test_green_runs_once(item: Planned, outcome: Outcome) -> None:
    bench = Bench(outcome)
    assert run(bench, item).verdict.colour == "green"
    assert len(bench.jobs) == 1


def test_attempts_of_the_supervisor_are_notes() -> None:
    outcome = replace(shown(THIS), attempts=("the forkserver was lost",))
    assert "the forkserver was lost" in run(Bench(outcome)).notes


def test_unavailable_case_runs_nothing() -> None:
    bench = Bench()
    record = run(bench, BROKEN, CaseContext(unavailable="no overlay: none on the index"))
    assert [f"started {BROKEN.key}", "result"] == bench.events
    assert (record.verdict, record.outcome.reason) == (Verdict.UNAVAILABLE, "no overlay: none on the index")


@pytest.mark.parametrize(
    ("item", "outcome", "words"),
    [
        (BROKEN, PASSED, ["vanished: the catalog expects this failure in this cell", "it passed", "outcome:   passed"]),
        (
            WORKS,
            shown(THIS),
            ["regressed: the catalog expects no failure in this cell", "exactly this failure (signature broke)"],
        ),
        (WORKS, shown(OTHER), ["unexplained", "it failed differently (other)"]),
        (WORKS, STRANGE, ["it failed differently (not a failure of the catalog)", "KeyError: 'loss'"]),
    ],
)
def test_explain_red_names_expectation_and_outcome(item: Planned, outcome: Outcome, words: list[str]) -> None:
    ended = replace(outcome, ranks=(RankEnd(0, 1, log="logs/rank-0.log"),))
    text = explain_red(run(Bench(ended, ended), item, CaseContext(reproduce="megatrix run --case X")))
    expected = [*words, "note:      run again", "log:       logs/rank-0.log", "reproduce: megatrix run --case X"]
    assert [word for word in expected if word not in text] == []


@pytest.mark.parametrize(
    ("outcome", "line"),
    [(Outcome(OutcomeKind.HUNG, "\n no end after 120 s\nrank 1"), "no end after 120 s"), (PASSED, "passed")],
)
def test_brief_is_one_line(outcome: Outcome, line: str) -> None:
    assert line == brief(outcome)


def test_nothing_runs_where_the_case_is_unavailable() -> None:
    bench = Bench()
    request = (BROKEN, THIS, (THIS,), CaseContext(unavailable="no"))
    Reproduction(*request, bench.run, bench, unread).run()
    assert [event.partition(" ")[0] for event in bench.events] == ["started", "result"]


def read(bench: Bench, check: Callable[[], Outcome]) -> Record:
    item = replace(BROKEN, level=Level.CONTRACT)
    return Reproduction(item, THIS, (THIS, OTHER), CaseContext(), bench.run, bench, check).run()


def test_read_outcome_is_judged_like_a_run() -> None:
    bench = Bench()
    assert read(bench, lambda: PASSED).verdict is Verdict.VANISHED
    assert [event.partition(" ")[0] for event in bench.events] == ["started", "result"]


def test_unreadable_release_is_unavailable() -> None:
    def check() -> Outcome:
        raise MatrixError("no recorded megatron-core has that version", got="0.99")

    record = read(Bench(), check)
    reason = "no recorded megatron-core has that version: got 0.99"
    assert (record.verdict, record.outcome.reason) == (Verdict.UNAVAILABLE, reason)


def test_explain_red_has_no_escape_sequences() -> None:
    """The message of an exception reaches a terminal and engine.log."""
    outcome = Outcome(OutcomeKind.RAISED, "\x1b]0;title\x07\x1b[2J")
    one = replace(record(Verdict.UNEXPLAINED), outcome=outcome, notes=("\x1b[1m",))
    assert "\x1b" not in (text := explain_red(one))
    assert "\\x1b]0;title\\x07\\x1b[2J" in text


def run_reading(bench: Bench, folder: Path) -> Record:
    """Run a case that reads what megatron-core 0.9.0 wrote."""
    entry = replace(THIS, case=(replace(CASE, write="save"),))
    item = replace(BROKEN, cell=BROKEN.cell.with_({WRITER_MCORE: "0.9.0"}))
    context = CaseContext(
        path=("reader",), writer_path=("writer",), checkpoint=folder / "checkpoint", log_dir=folder / "logs"
    )
    return Reproduction(item, entry, (entry,), context, bench.run, bench, unread).run()


def test_the_writer_runs_before_the_reader(tmp_path: Path) -> None:
    bench = Bench(PASSED, shown(THIS))
    assert run_reading(bench, tmp_path).verdict is Verdict.REPRODUCED
    wrote, read = bench.jobs
    assert (wrote.target, wrote.path) == ("failures/this/reproduction.py:save", ("writer",))
    assert (read.target, read.path) == ("failures/this/reproduction.py:run_tp2", ("reader",))
    assert (wrote.log_dir, read.log_dir) == (tmp_path / "logs" / "writer", tmp_path / "logs")
    assert read.checkpoint == tmp_path / "checkpoint"


def test_a_failed_writer_is_never_the_failure(tmp_path: Path) -> None:
    """Even where the writer fails with the very signature of the entry."""
    record = run_reading(Bench(shown(THIS)), tmp_path)
    assert (record.verdict, record.signature) == (Verdict.UNEXPLAINED, None)
    assert record.outcome.reason == "the checkpoint was not written: raised: rank 0 raised: this"


WRITER_RAISED = Outcome(OutcomeKind.RAISED, "rank 0 raised", 0, chain=(Raised("TypeError", "broke"),), evidence="broke")


class Writer:
    """A writer with these outcomes, one for each call."""

    def __init__(self, *outcomes: Outcome) -> None:
        self.outcomes = list(outcomes)

    def __call__(self, folder: Path) -> Outcome:
        assert list(folder.iterdir()) == []
        (folder / "weights").write_text("1", encoding="utf-8")
        return self.outcomes.pop(0)


def test_checkpoint_is_written_once(tmp_path: Path) -> None:
    write = Writer(PASSED)
    assert provide_checkpoint(tmp_path / "a", write) is None
    assert provide_checkpoint(tmp_path / "a", write) is None
    assert (tmp_path / "a" / "weights").read_text(encoding="utf-8") == "1"


def test_unfinished_checkpoint_is_written_again(tmp_path: Path) -> None:
    (tmp_path / "a.making" / "old").mkdir(parents=True)
    assert provide_checkpoint(tmp_path / "a", Writer(PASSED)) is None
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["weights"]


def test_a_failed_writer_shows_no_signature(tmp_path: Path) -> None:
    """Otherwise an error of the writer would count as the error of the reader."""
    missing = provide_checkpoint(tmp_path / "a", Writer(WRITER_RAISED))
    assert missing == Outcome(OutcomeKind.EXITED, "the checkpoint was not written: raised: rank 0 raised")
    assert not (tmp_path / "a").exists()


def test_an_unavailable_writer_is_unavailable(tmp_path: Path) -> None:
    lack = Outcome(OutcomeKind.UNAVAILABLE, "no memory cgroup")
    assert provide_checkpoint(tmp_path / "a", Writer(lack)) == lack


def test_an_interrupted_writer_leaves_nothing(tmp_path: Path) -> None:
    def write(folder: Path) -> Outcome:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        provide_checkpoint(tmp_path / "a", write)
    assert provide_checkpoint(tmp_path / "a", Writer(PASSED)) is None
