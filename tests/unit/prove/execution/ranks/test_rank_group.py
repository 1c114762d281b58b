"""Faults of real rank processes: each is classified, ends in time and leaves no process.

Tests with `fresh` are those that the start of a rank may decide: how a group reads and stops ranks is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from matrix.ground.catalog.failure import Limits
from matrix.ground.catalog.schema import Size
from matrix.ground.verdicts.outcome import Outcome, OutcomeKind
from matrix.prove.execution.ranks import supervisor
from matrix.prove.execution.ranks.descendants import look
from matrix.prove.execution.ranks.rank_process import HEAD, TAIL
from matrix.prove.execution.ranks.rank_spec import RankJob
from matrix.prove.execution.ranks.supervisor import Supervisor
from tests.unit.prove.execution.ranks.marks import ranks_and_orphans

MakeJob = Callable[..., RankJob]
Run = Callable[[RankJob], Outcome]


@pytest.fixture
def run(supervisor: Supervisor, mark: str) -> Run:
    """Run a job and check that it leaves no process."""

    def supervised(job: RankJob) -> Outcome:
        outcome = supervisor.run(job)
        assert ranks_and_orphans(mark) == {}
        return outcome

    return supervised


def test_segfault_in_rank_1_fails_the_job(run: Run, job: MakeJob, fresh: bool) -> None:
    outcome = run(job("segfault", fresh=fresh))
    assert (
        outcome.kind,
        outcome.rank,
        outcome.signal,
        outcome.exit_code,
    ) == (OutcomeKind.SIGNALED, 1, "SIGSEGV", -11)
    assert [end.exit_code for end in outcome.ranks] == [0, -11]
    assert outcome.reason == "rank 1 died by SIGSEGV"


def test_segfault_evidence_contains_the_python_stack(run: Run, job: MakeJob, fresh: bool) -> None:
    outcome = run(job("segfault", fresh=fresh))
    assert "Fatal Python error: Segmentation fault" in outcome.evidence
    assert "in segfault" in outcome.evidence


def test_segfault_is_blamed_not_its_disconnected_peer(run: Run, job: MakeJob, tmp_path: Path) -> None:
    outcome = run(job("segfault_as_peer_complains", kwargs={"folder": str(tmp_path)}))
    assert (outcome.kind, outcome.rank) == (OutcomeKind.SIGNALED, 1)


def test_abort_is_signaled(run: Run, job: MakeJob, fresh: bool) -> None:
    outcome = run(job("abort", fresh=fresh))
    assert (outcome.kind, outcome.signal) == (OutcomeKind.SIGNALED, "SIGABRT")


def test_exit_6_is_exited_with_its_status(run: Run, job: MakeJob, fresh: bool) -> None:
    outcome = run(job("leave", kwargs={"status": 6}, fresh=fresh))
    assert (outcome.kind, outcome.exit_code, outcome.signal) == (OutcomeKind.EXITED, 6, None)


@pytest.mark.parametrize(("body", "kwargs"), [("leave", {"status": 0}), ("leave_politely", {})])
def test_exit_0_before_return_does_not_pass(
    run: Run, job: MakeJob, fresh: bool, body: str, kwargs: dict[str, int]
) -> None:
    outcome = run(job(body, kwargs=kwargs, fresh=fresh))
    assert (outcome.kind, outcome.exit_code) == (OutcomeKind.EXITED, 0)
    assert "before its body returned" in outcome.reason


def test_crash_after_return_is_signaled(run: Run, job: MakeJob, fresh: bool) -> None:
    outcome = run(job("crash_after_return", fresh=fresh))
    assert (outcome.kind, outcome.signal) == (OutcomeKind.SIGNALED, "SIGSEGV")
    assert "after its body had returned" in outcome.reason
    assert outcome.ranks[0].returned


def test_exception_is_reported_and_its_peer_stopped(run: Run, job: MakeJob, fresh: bool) -> None:
    outcome = run(job("raise_beside_waiting_peers", fresh=fresh))
    assert (outcome.kind, outcome.rank) == (OutcomeKind.RAISED, 0)
    assert [(raised.type, raised.message) for raised in outcome.chain] == [
        ("KeyError", "'the root'"),
        ("RuntimeError", "the consequence"),
    ]
    assert outcome.chain[-1].frames[-1].function == "raise_beside_waiting_peers"
    assert [end.stopped for end in outcome.ranks] == [False, True]
    assert outcome.seconds < 30.0  # the deadline: the peer was stopped after its grace
    assert outcome.ranks[1].exit_code is None
    assert "in wait_forever" in outcome.ranks[1].stacks


def test_base_exception_is_raised(run: Run, job: MakeJob, fresh: bool) -> None:
    outcome = run(job("raise_base_exception", world_size=1, fresh=fresh))
    assert (outcome.kind, outcome.chain[0].type) == (OutcomeKind.RAISED, "BaseException")


@pytest.mark.parametrize(
    "target", ["tests.unit.prove.execution.ranks.bodies:no_such_body", "no_such_package.module:body"]
)
def test_missing_target_is_raised_in_the_rank(run: Run, job: MakeJob, fresh: bool, target: str) -> None:
    outcome = run(job(target, fresh=fresh))
    assert outcome.kind == OutcomeKind.RAISED
    assert outcome.chain[0].type in {"AttributeError", "ModuleNotFoundError"}


def test_python_hang_names_the_straggler_and_its_frame(run: Run, job: MakeJob, fresh: bool, soon: float) -> None:
    outcome = run(job("straggle", world_size=3, deadline_s=soon, fresh=fresh))
    assert (outcome.kind, outcome.rank) == (OutcomeKind.HUNG, 1)
    assert outcome.reason.startswith(
        f"rank 1 had not finished after {soon:g} s, ranks 0, 2 had: rank 1 in wait_forever (bodies.py:"
    )
    assert "in straggle" in outcome.evidence
    assert Path(outcome.ranks[1].log).with_suffix(".stacks").read_text() == outcome.ranks[1].stacks
    assert "in straggle" in outcome.ranks[1].stacks


def test_c_hang_with_blocked_signals_is_ended(run: Run, job: MakeJob, fresh: bool, soon: float) -> None:
    outcome = run(job("hang_deaf", deadline_s=soon, fresh=fresh))
    assert outcome.kind == OutcomeKind.HUNG
    assert "no answer to SIGUSR1: state S (sleeping)" in outcome.ranks[0].stacks


def test_rank_that_ignores_sigterm_is_killed(run: Run, job: MakeJob, soon: float) -> None:
    outcome = run(job("hang_stubborn", deadline_s=soon))
    assert (outcome.kind, outcome.leftovers) == (OutcomeKind.HUNG, 0)


def test_stop_ends_the_children_of_a_rank(run: Run, job: MakeJob, soon: float) -> None:
    """The children are no leftovers, because they did not outlive their rank."""
    outcome = run(job("hang_with_child", deadline_s=soon))
    assert (outcome.kind, outcome.leftovers) == (OutcomeKind.HUNG, 0)


def test_hang_includes_stacks_of_forked_children(run: Run, job: MakeJob, fresh: bool, soon: float) -> None:
    outcome = run(job("wait_for_stuck_fork", world_size=1, deadline_s=soon, fresh=fresh))
    own, _, below = outcome.ranks[0].stacks.partition("started by this rank")
    assert "in wait_for_stuck_fork" in own
    assert "in stick" in below


def test_early_sigusr1_does_not_kill_a_rank(run: Run, job: MakeJob, fresh: bool) -> None:
    outcome = run(job("wait_forever", deadline_s=0.001, fresh=fresh))
    assert outcome.kind == OutcomeKind.HUNG


def test_rank_that_does_not_end_after_return_hangs(run: Run, job: MakeJob, soon: float) -> None:
    outcome = run(job("hang_after_return", deadline_s=soon))
    assert outcome.kind == OutcomeKind.HUNG
    assert "after its body had returned" in outcome.reason


def test_memory_error_under_limit_is_out_of_memory(run: Run, job: MakeJob, fresh: bool) -> None:
    outcome = run(job("take_memory", limits=Limits(address_space=Size(2**29)), fresh=fresh))
    assert (outcome.kind, outcome.chain[0].type) == (OutcomeKind.OUT_OF_MEMORY, "MemoryError")


def test_same_body_passes_without_the_limit(run: Run, job: MakeJob, fresh: bool) -> None:
    assert run(job("take_memory", world_size=1, fresh=fresh)).kind == OutcomeKind.PASSED


def test_abort_after_bad_alloc_is_out_of_memory(run: Run, job: MakeJob, fresh: bool) -> None:
    outcome = run(job("take_memory_in_c", fresh=fresh))
    assert (outcome.kind, outcome.signal) == (OutcomeKind.OUT_OF_MEMORY, "SIGABRT")


def test_sigkill_without_an_oom_kill_is_signaled(
    run: Run, job: MakeJob, fresh: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "oom_kills", lambda **_: {})  # the kernel counts those of other tests, too
    outcome = run(job("kill_itself", fresh=fresh))
    assert (outcome.kind, outcome.signal) == (OutcomeKind.SIGNALED, "SIGKILL")


def test_long_log_keeps_its_head_and_tail(run: Run, job: MakeJob) -> None:
    """Eight times as long as what is kept."""
    size = 8 * (HEAD + TAIL)
    outcome = run(job("write_a_long_log", kwargs={"size": size}, world_size=1, deadline_s=600.0))
    assert outcome.kind == OutcomeKind.PASSED
    log = Path(outcome.ranks[0].log).read_bytes()
    assert len(log) < HEAD + TAIL + 100
    assert log.startswith(b"the beginning\n")
    assert log.endswith(b"the end\n")
    left_out = size + len("the beginning\nthe end\n") - HEAD - TAIL
    assert b"\n[... %d bytes left out ...]\n" % left_out in log


def test_invalid_utf_8_is_kept_in_logs(run: Run, job: MakeJob) -> None:
    outcome = run(job("write_bytes", kwargs={"text": "fffe41"}, world_size=1))
    assert Path(outcome.ranks[0].log).read_bytes() == b"\xff\xfeA"


def test_left_children_and_daemons_are_ended_and_counted(run: Run, job: MakeJob, fresh: bool) -> None:
    outcome = run(job("leave_children", fresh=fresh))
    assert (outcome.kind, outcome.leftovers) == (OutcomeKind.PASSED, 6)


def test_left_manager_process_is_ended(run: Run, job: MakeJob) -> None:
    outcome = run(job("leave_manager", world_size=1))
    assert (outcome.kind, outcome.leftovers) == (OutcomeKind.EXITED, 1)


@pytest.mark.parametrize(("size", "word"), [(0, "JSON"), (2**21, "too much")])
def test_invalid_return_value_is_raised_in_the_rank(run: Run, job: MakeJob, size: int, word: str) -> None:
    outcome = run(job("return_value", kwargs={"size": size}, world_size=1))
    assert (outcome.kind, outcome.chain[-1].type) == (OutcomeKind.RAISED, "MatrixError")
    assert word in outcome.reason + outcome.chain[-1].message


def test_killed_forkserver_is_not_reached_then_restarted(run: Run, job: MakeJob, fresh: bool) -> None:
    outcome = run(job("kill_server", fresh=fresh))
    assert (outcome.kind, outcome.reason) == (OutcomeKind.NOT_REACHED, "the forkserver died while the job ran")
    assert run(job("nothing", fresh=fresh)).kind == OutcomeKind.PASSED


def test_ranks_end_with_their_killed_forkserver(run: Run, job: MakeJob, tmp_path: Path, fresh: bool) -> None:
    """The pipes of the forkserver end before its ranks do."""
    pids = tmp_path / "pids"
    pids.mkdir()
    run(job("kill_server_of_large_ranks", kwargs={"folder": str(pids)}, fresh=fresh))
    ranks = {int(file.name) for file in pids.iterdir()}
    assert len(ranks) == 2
    assert ranks & look().running == set()


def test_exit_handler_that_hangs_is_hung(run: Run, job: MakeJob, fresh: bool, soon: float) -> None:
    outcome = run(job("leave_at_exit", kwargs={"how": "hang"}, deadline_s=soon, fresh=fresh))
    assert outcome.kind == OutcomeKind.HUNG
    assert "after its body had returned" in outcome.reason


def test_status_of_an_exit_handler_is_exited(run: Run, job: MakeJob, fresh: bool) -> None:
    outcome = run(job("leave_at_exit", kwargs={"how": "exit"}, fresh=fresh))
    assert (outcome.kind, outcome.exit_code) == (OutcomeKind.EXITED, 3)


def test_output_of_exit_handlers_is_logged_once(run: Run, job: MakeJob, fresh: bool) -> None:
    outcome = run(job("leave_at_exit", kwargs={"how": "print"}, fresh=fresh))
    assert outcome.kind == OutcomeKind.PASSED
    assert [Path(end.log).read_text() for end in outcome.ranks] == ["at exit"] * 2


GARBAGE = (
    "null",
    "5",
    "[]",
    '{"raised": 5}',
    '{"raised": [1]}',
    '{"raised": [{}]}',
    '{"lacks": [1]}',
    "[" * 100_000,
    "x",
)


@pytest.mark.parametrize("line", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_on_the_report_pipe_is_ignored(run: Run, job: MakeJob, line: str) -> None:
    outcome = run(job("write_report", kwargs={"line": line}, world_size=1))
    assert outcome.kind == OutcomeKind.PASSED


def test_removed_shared_folder_does_not_break_later_jobs(run: Run, job: MakeJob) -> None:
    run(job("remove_shared_folder", world_size=1))
    assert run(job("nothing")).kind == OutcomeKind.PASSED


def test_rank_without_sigusr1_handler_is_hung(run: Run, job: MakeJob, fresh: bool, soon: float) -> None:
    outcome = run(job("hang_without_a_handler", deadline_s=soon, fresh=fresh))
    assert outcome.kind == OutcomeKind.HUNG
    assert "no handler for SIGUSR1" in outcome.ranks[0].stacks
