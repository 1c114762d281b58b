"""Classification of the ranks' ends into an outcome. Pure values."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.ground.verdicts.blame import HEAD_START_S, RankFault, classify, fault_of, headline
from matrix.ground.verdicts.log_match import match
from matrix.ground.verdicts.outcome import EVIDENCE, Outcome, OutcomeKind, Raised, RankEnd

CLOSED = Raised("RuntimeError", "[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:48213")
BROKEN = Raised("AssertionError", "item.index.fqn not in md")


def blame(*ends: RankEnd, **known: Any) -> Outcome:
    usual: dict[str, Any] = {"logs": {}, "traces": {}, "deadline_s": 60.0, "timed_out": False, "oom_kills": 0}
    return classify(ends, **{**usual, **known})


def fine(rank: int, seconds: float = 1.0) -> RankEnd:
    return RankEnd(rank, 0, returned=True, seconds=seconds)


def died(rank: int, number: int, seconds: float = 1.0) -> RankEnd:
    return RankEnd(rank, -number, seconds=seconds)


def raised(rank: int, *chain: Raised, seconds: float = 1.0) -> RankEnd:
    return RankEnd(rank, 1, chain, seconds=seconds)


def stopped(rank: int, **known: Any) -> RankEnd:
    return RankEnd(rank, None, stopped=True, seconds=9.0, **known)


def test_passed_if_all_ranks_return_with_status_0() -> None:
    assert blame(fine(0), fine(1)) == Outcome(OutcomeKind.PASSED, exit_code=0, ranks=(fine(0), fine(1)))


THROWN = "terminate called after throwing an instance of 'E'\n  what():  "
UNLISTED = Raised("RuntimeError", "a text in no list")


@pytest.mark.parametrize(
    ("end", "log", "oom_kills", "kind", "what", "cascade"),
    [
        (raised(0, UNLISTED), "", 0, OutcomeKind.RAISED, "raised: RuntimeError: a text in no list", False),
        (raised(0, CLOSED), "", 0, OutcomeKind.RAISED, f"raised: RuntimeError: {CLOSED.message}", True),
        (
            raised(0, Raised("MemoryError", "")),
            "",
            0,
            OutcomeKind.OUT_OF_MEMORY,
            "ran out of memory: MemoryError",
            False,
        ),
        (died(0, 9), "", 0, OutcomeKind.SIGNALED, "died by SIGKILL", False),
        (
            died(0, 9),
            "",
            1,
            OutcomeKind.OUT_OF_MEMORY,
            "was killed (SIGKILL) while the kernel's count of processes killed for memory rose",
            False,
        ),
        (
            replace(died(0, 9), returned=True),
            "",
            2,
            OutcomeKind.OUT_OF_MEMORY,
            "was killed (SIGKILL) after its body had returned while the kernel's count of processes killed for memory "
            "rose",
            False,
        ),
        (died(0, 6), f"{THROWN}std::bad_alloc", 0, OutcomeKind.OUT_OF_MEMORY, "ran out of memory and aborted", False),
        (died(0, 6), f"{THROWN}Broken pipe", 0, OutcomeKind.SIGNALED, "died by SIGABRT", True),
        (died(0, 11), f"{THROWN}Broken pipe", 0, OutcomeKind.SIGNALED, "died by SIGSEGV", False),
        (died(0, 6), "Broken pipe, caught", 0, OutcomeKind.SIGNALED, "died by SIGABRT", False),
        # The last terminate counts: an earlier one is of another process that writes to the same log.
        (died(0, 6), f"{THROWN}Broken pipe\n{THROWN}assert", 0, OutcomeKind.SIGNALED, "died by SIGABRT", False),
        (
            replace(died(0, 11), returned=True),
            "",
            0,
            OutcomeKind.SIGNALED,
            "died by SIGSEGV after its body had returned",
            False,
        ),
        (RankEnd(0, 1, seconds=1.0), "", 0, OutcomeKind.EXITED, "left with status 1 before its body returned", False),
        (RankEnd(0, 0, seconds=1.0), "", 0, OutcomeKind.EXITED, "left with status 0 before its body returned", False),
        (
            RankEnd(0, 1, returned=True, seconds=1.0),
            "",
            0,
            OutcomeKind.EXITED,
            "left with status 1 after its body had returned",
            False,
        ),
    ],
)
def test_fault_of_one_rank(end: RankEnd, log: str, oom_kills: int, kind: OutcomeKind, what: str, cascade: bool) -> None:
    """An exception counts from when it was reported, a death from HEAD_START_S before."""
    when = 1.0 if end.chain else 1.0 - HEAD_START_S
    assert fault_of(end, log, oom_kills) == RankFault(end, kind, what, when, cascade)


@pytest.mark.parametrize("end", [fine(0), stopped(0), RankEnd(0, -15, stopped=True), RankEnd(0, None)])
def test_end_without_a_fault(end: RankEnd) -> None:
    """A rank that was stopped has the signal that stopped it."""
    assert fault_of(end, "", 1) is None


def test_signal_in_rank_1_is_the_outcome() -> None:
    outcome = blame(fine(0), died(1, signal.SIGSEGV))
    assert (outcome.kind, outcome.rank, outcome.signal) == (OutcomeKind.SIGNALED, 1, "SIGSEGV")


def test_real_time_signal_is_named_by_number() -> None:
    assert blame(died(0, 40)).signal == "signal 40"


def test_earliest_of_two_deaths_is_the_root() -> None:
    assert blame(died(0, signal.SIGSEGV, 2.0), died(1, signal.SIGBUS, 1.0)).rank == 1


def test_death_shortly_after_an_exception_is_the_root() -> None:
    unknown = Raised("RuntimeError", "a text in no list of cascades")
    assert blame(raised(0, unknown, seconds=1.0), died(1, signal.SIGSEGV, 1.0 + HEAD_START_S / 2)).rank == 1


def test_exception_long_before_a_death_is_the_root() -> None:
    assert blame(raised(0, BROKEN, seconds=1.0), died(1, signal.SIGSEGV, 1.1 + HEAD_START_S)).rank == 0


@pytest.mark.parametrize(
    "message",
    [
        CLOSED.message,
        "[../gloo/transport/tcp/pair.cc:598] Connection reset by peer",
        "NCCL error: remote process exited or there was a network error, NCCL version 2.20.5",
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
        "[1] is setting up NCCL communicator ... but store->get('0') got error: Connection reset by peer",
        "Broken pipe",
        "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?",
        "Socket unexpectedly closed",
    ],
)
def test_lost_peer_exception_is_not_the_root(message: str) -> None:
    outcome = blame(raised(0, Raised("RuntimeError", message), seconds=1.0), raised(1, BROKEN, seconds=2.0))
    assert (outcome.rank, outcome.chain) == (1, (BROKEN,))


def test_lost_peer_is_the_root_without_other_failures() -> None:
    assert (blame(raised(0, CLOSED), stopped(1)).kind, blame(raised(0, CLOSED)).rank) == (OutcomeKind.RAISED, 0)


def test_chain_is_classified_by_its_root() -> None:
    """An exception raised while another is handled may report a lost peer."""
    assert blame(raised(0, BROKEN, CLOSED, seconds=2.0), raised(1, CLOSED, seconds=1.0)).rank == 0


def test_abort_after_lost_peer_is_not_the_root() -> None:
    log = "terminate called after throwing an instance of 'gloo::IoException'\n  what():  Connection closed by peer"
    outcome = blame(raised(0, BROKEN, seconds=1.2), died(1, signal.SIGABRT, 1.3), logs={1: log})
    assert outcome.rank == 0


def test_exit_0_before_return_is_exited() -> None:
    outcome = blame(RankEnd(0, 0), stopped(1))
    assert (outcome.kind, outcome.exit_code, outcome.rank) == (OutcomeKind.EXITED, 0, 0)


def test_exit_6_is_exited() -> None:
    outcome = blame(RankEnd(0, 6), stopped(1))
    assert (outcome.kind, outcome.exit_code) == (OutcomeKind.EXITED, 6)


@pytest.mark.parametrize(
    "error",
    [
        Raised("MemoryError", ""),
        Raised("OutOfMemoryError", "CUDA out of memory. Tried to allocate 64.00 GiB"),
        Raised(
            "RuntimeError",
            "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
            "allocate 68719476736 bytes. Error code 12 (Cannot allocate memory)",
        ),
        Raised("RuntimeError", "std::bad_alloc"),
    ],
)
def test_memory_exception_is_out_of_memory(error: Raised) -> None:
    outcome = blame(raised(0, error))
    assert (outcome.kind, outcome.chain) == (OutcomeKind.OUT_OF_MEMORY, (error,))


def test_sigkill_with_oom_kill_is_out_of_memory() -> None:
    outcome = blame(died(0, signal.SIGKILL), oom_kills=1)
    assert (outcome.kind, outcome.signal) == (OutcomeKind.OUT_OF_MEMORY, "SIGKILL")


def test_sigkill_without_an_oom_kill_is_signaled() -> None:
    assert blame(died(0, signal.SIGKILL)).kind is OutcomeKind.SIGNALED


def test_segfault_with_an_oom_kill_is_signaled() -> None:
    assert blame(died(0, signal.SIGSEGV), oom_kills=1).kind is OutcomeKind.SIGNALED


@pytest.mark.parametrize(("oom_kills", "kind"), [(1, OutcomeKind.OUT_OF_MEMORY), (0, OutcomeKind.RAISED)])
def test_oom_killed_worker_is_out_of_memory(oom_kills: int, kind: OutcomeKind) -> None:
    error = Raised("RuntimeError", "DataLoader worker (pid 4242) is killed by signal: Killed. ")
    assert blame(raised(0, error), oom_kills=oom_kills).kind is kind


def test_abort_after_bad_alloc_is_out_of_memory() -> None:
    log = "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n"
    assert blame(died(0, signal.SIGABRT), logs={0: log}).kind is OutcomeKind.OUT_OF_MEMORY


def test_caught_bad_alloc_in_the_log_is_ignored() -> None:
    assert blame(died(0, signal.SIGABRT), logs={0: "caught std::bad_alloc, going on"}).kind is OutcomeKind.SIGNALED


def test_exception_before_a_crash_is_raised() -> None:
    outcome = blame(replace(died(0, signal.SIGSEGV), chain=(BROKEN,)))
    assert (outcome.kind, outcome.signal) == (OutcomeKind.RAISED, "SIGSEGV")


def test_stopped_rank_with_an_exception_is_raised() -> None:
    assert blame(stopped(0, chain=(BROKEN,)), stopped(1)).kind is OutcomeKind.RAISED


def test_reason_names_rank_and_error_in_one_line() -> None:
    assert blame(raised(3, Raised("ValueError", "first\nsecond"))).reason == "rank 3 raised: ValueError: first"


def test_hang_names_the_unfinished_ranks() -> None:
    outcome = blame(fine(0), stopped(1), timed_out=True)
    assert outcome.rank == 1
    assert outcome.reason == "rank 1 had not finished after 60 s, rank 0 had: rank 1 at an unknown place"


HEAD = "Current thread 0x00007f00 (most recent call first):"


def trace(function: str) -> str:
    return f'{HEAD}\n  File "/x/y.py", line 3 in {function}\n'


def test_hang_names_the_rank_with_a_different_stack() -> None:
    traces = {0: trace("all_reduce"), 1: trace("sleep"), 2: trace("all_reduce")}
    outcome = blame(stopped(0), stopped(1), stopped(2), traces=traces, timed_out=True)
    assert outcome.rank == 1
    assert outcome.reason.endswith("ranks 0, 2 in all_reduce (y.py:3); rank 1 in sleep (y.py:3)")


def in_collective(function: str, line: int) -> str:
    dist = "/site-packages/torch/distributed/distributed_c10d.py"
    return f'{HEAD}\n  File "{dist}", line 3 in {function}\n  File "/x/train.py", line {line} in step\n'


@pytest.mark.parametrize(
    ("traces", "suspect", "standing"),
    [
        ({0: in_collective("all_reduce", 9), 1: trace("load")}, 1, "rank 0 in all_reduce, called in step (train.py:9)"),
        ({0: in_collective("barrier", 9), 1: trace("load"), 2: trace("load")}, None, "ranks 1, 2 in load (y.py:3)"),
        ({0: in_collective("all_reduce", 9), 1: in_collective("broadcast", 8)}, None, "rank 1 in broadcast, called in"),
    ],
)
def test_rank_outside_of_the_collective_is_suspected(
    traces: dict[int, str], suspect: int | None, standing: str
) -> None:
    """As `megatrix match` names it, which reads the evidence of the hang as a log."""
    outcome = blame(*(stopped(rank) for rank in traces), traces=traces, timed_out=True)
    assert outcome.rank == suspect
    assert standing in outcome.reason
    (answer,) = match([outcome.evidence], ()).standstills
    assert answer.ranks == ((str(suspect),) if suspect is not None else answer.ranks)
    assert len(answer.ranks) == (1 if suspect is not None else 2)


def test_hang_keeps_stacks_and_the_suspects_log() -> None:
    ends = (stopped(0), RankEnd(1, -15, stopped=True, returned=True, seconds=60.0), stopped(2))
    traces = {0: trace("all_reduce"), 2: trace("all_reduce")}
    outcome = blame(*ends, traces=traces, logs={0: "zero", 1: "one"}, timed_out=True)
    assert outcome == Outcome(
        OutcomeKind.HUNG,
        reason="ranks 0, 1, 2 had not finished after 60 s: ranks 0, 2 in all_reduce (y.py:3); rank 1 finished after "
        "60.00 s",
        rank=1,
        evidence=f"rank 0:\n{traces[0]}\nrank 1:\n\nrank 2:\n{traces[2]}\nend of rank 1's log:\none",
        ranks=ends,
    )


def test_hang_without_a_suspect_keeps_stacks_alone() -> None:
    outcome = blame(stopped(0), stopped(1), traces={1: trace("recv")}, logs={0: "zero", 1: "one"}, timed_out=True)
    assert outcome.reason.endswith(" after 60 s: rank 0 at an unknown place; rank 1 in recv (y.py:3)")
    assert outcome.evidence == f"rank 0:\n\nrank 1:\n{trace('recv')}"


def test_suspect_without_a_log_has_an_empty_end() -> None:
    assert blame(fine(0), stopped(1), timed_out=True).evidence == "rank 1:\n\nend of rank 1's log:\n"


def test_hang_of_some_suspects_the_first_of_them() -> None:
    """Whatever their places are: the others have finished."""
    traces = {1: trace("recv"), 2: trace("sleep")}
    outcome = blame(fine(0), stopped(1), stopped(2), traces=traces, timed_out=True)
    assert outcome.rank == 1
    assert outcome.reason.startswith("ranks 1, 2 had not finished after 60 s, rank 0 had: ")


def test_hang_after_the_return_is_named() -> None:
    outcome = blame(stopped(0, returned=True), traces={0: trace("exit")}, timed_out=True)
    assert outcome.reason == "rank 0 had not finished after 60 s: rank 0 after its body had returned, in exit (y.py:3)"


def test_evidence_of_a_hang_has_a_limit() -> None:
    outcome = blame(stopped(0), traces={0: "x" * 2 * EVIDENCE}, timed_out=True)
    assert len(outcome.evidence) == EVIDENCE


def test_hang_of_two_with_different_stacks_blames_none() -> None:
    outcome = blame(stopped(0), stopped(1), traces={0: trace("recv"), 1: trace("sleep")}, timed_out=True)
    assert outcome.rank is None


def test_death_is_the_outcome_after_the_deadline_too() -> None:
    assert blame(died(0, signal.SIGSEGV), stopped(1), timed_out=True).kind is OutcomeKind.SIGNALED


def test_stopped_rank_without_a_cause_raises() -> None:
    with pytest.raises(ValueError, match=r"ranks \[1\]"):
        blame(fine(0), stopped(1))


@pytest.mark.parametrize(("logs", "evidence"), [({0: "zero", 1: "one"}, "one"), ({0: "zero"}, "")])
def test_evidence_is_the_log_of_the_blamed_rank(logs: dict[int, str], evidence: str) -> None:
    ends = (died(1, signal.SIGSEGV), fine(0))
    assert blame(*ends, logs=logs) == Outcome(
        OutcomeKind.SIGNALED,
        reason="rank 1 died by SIGSEGV",
        rank=1,
        signal="SIGSEGV",
        exit_code=-11,
        evidence=evidence,
        ranks=ends,
    )


@pytest.mark.parametrize("end", [RankEnd(0, 0), RankEnd(0, 1)])
def test_exit_status_0_or_1_is_no_signal(end: RankEnd) -> None:
    assert blame(end).signal is None


def test_unfinished_rank_without_status_raises() -> None:
    """Its body returned, and nobody waited for the process."""
    with pytest.raises(ValueError, match=r"ranks \[1\]"):
        blame(fine(0), RankEnd(1, None, returned=True))


seconds = st.floats(0, 100)
chains = st.sampled_from([(), (BROKEN,), (CLOSED,), (BROKEN, CLOSED), (Raised("MemoryError", ""),)])


@st.composite
def jobs(draw: st.DrawFn) -> list[RankEnd]:
    """Draw the ends of a job that did not time out: each rank ended by itself, or was stopped as a peer of one."""
    ends = []
    for rank in range(draw(st.integers(1, 5))):
        chain = draw(chains)
        if chain:
            code = draw(st.sampled_from([1, 1, -11, None]))
            end = RankEnd(rank, code, chain, stopped=code is None, seconds=draw(seconds))
        else:
            code = draw(st.sampled_from([0, 0, 0, 1, 6, -6, -9, -11]))
            returned = draw(st.booleans())
            end = RankEnd(rank, code, returned=returned, seconds=draw(seconds))
        ends.append(end)
    if not all(end.exit_code == 0 and end.returned for end in ends):
        ends += [stopped(len(ends) + extra) for extra in range(draw(st.integers(0, 2)))]
    return ends


@given(jobs(), st.integers(0, 1))
def test_passed_only_if_every_rank_returned_with_0(ends: list[RankEnd], oom_kills: int) -> None:
    passed = all(end.returned and end.exit_code == 0 and not end.chain for end in ends)
    assert (blame(*ends, oom_kills=oom_kills).kind is OutcomeKind.PASSED) == passed


@given(jobs(), st.randoms(use_true_random=False))
def test_order_of_ranks_does_not_matter(ends: list[RankEnd], random: Any) -> None:
    shuffled = list(ends)
    random.shuffle(shuffled)
    assert replace(blame(*shuffled), ranks=()) == replace(blame(*ends), ranks=())


@given(jobs())
def test_stopped_rank_without_exception_is_never_blamed(ends: list[RankEnd]) -> None:
    assert blame(*ends).rank not in {end.rank for end in ends if end.stopped and not end.chain}


@given(jobs())
def test_lost_peer_is_never_blamed_beside_another_failure(ends: list[RankEnd]) -> None:
    outcome = blame(*ends)
    others = [end for end in ends if end.chain[:1] != (CLOSED,) and not end.stopped and blame_alone(end)]
    if others:
        assert outcome.chain[:1] != (CLOSED,)


def blame_alone(end: RankEnd) -> bool:
    return blame(end).kind is not OutcomeKind.PASSED


@given(jobs(), seconds)
def test_first_segfault_is_always_the_root(ends: list[RankEnd], earlier: float) -> None:
    first = min(end.seconds for end in ends) - HEAD_START_S - earlier
    assert blame(*ends, died(99, signal.SIGSEGV, first - 0.001)).rank == 99


def test_ranks_that_finish_after_the_deadline_are_named() -> None:
    assert blame(fine(0, 60.0), fine(1, 12.0), timed_out=True).rank == 0
    outcome = blame(fine(0, 60.01), fine(1, 12.0), timed_out=True)
    assert outcome.kind is OutcomeKind.HUNG
    assert outcome.reason == "rank 0 had not finished after 60 s, rank 1 had: rank 0 finished after 60.01 s"


@pytest.mark.parametrize(
    ("message", "line"),
    [("", "E"), (" \n", "E"), ("first", "E: first"), ("\n first\nsecond\nthird", "E: first")],
)
def test_headline_is_type_and_first_line(message: str, line: str) -> None:
    assert headline(Raised("E", message)) == line


PEER_STOPPED: Final = Raised("RuntimeError", "[pair.cc:534] Connection closed by peer [127.0.0.1]:32157")


@pytest.mark.parametrize(
    ("end", "kind"),
    [
        (
            RankEnd(1, None, (PEER_STOPPED,), stopped=True, seconds=60.2),
            OutcomeKind.HUNG,
        ),  # the peer was stopped before it
        (raised(1, PEER_STOPPED, seconds=60.2), OutcomeKind.HUNG),
        (raised(1, PEER_STOPPED, seconds=20.0), OutcomeKind.RAISED),  # a peer that was lost before the deadline
        (raised(1, BROKEN, seconds=60.2), OutcomeKind.RAISED),
    ],
)
def test_peer_lost_to_the_deadline_is_no_cause(end: RankEnd, kind: OutcomeKind) -> None:
    """A night blamed rank 1 for the peer that the supervisor stopped, and not the save that hung for 120 s."""
    outcome = blame(stopped(0), end, traces={0: "stuck"}, timed_out=True)
    assert outcome.kind is kind
    assert ("stuck" in outcome.evidence) == (kind is OutcomeKind.HUNG)
