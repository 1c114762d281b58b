"""Who is behind, or runs another collective, by what torch prints.

The lines of NCCL are written by the formats of torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp: checkTimeout,
watchdogHandler (Watchdog::runLoop), getNCCLWatchdogTimeoutErrorMsg, createLogPrefix and operator<< of WorkNCCL, as in
the sources of 2.0 and 2.8 and in libtorch_cuda.so of 2.3.1, 2.4.0 and 2.15.0; the desync report by TraceUtils.h of 2.3.
"""

from __future__ import annotations

import pytest

from matrix.ground.verdicts.collectives import Position, name_all, reports_in, standstills, stated
from matrix.ground.verdicts.log_match import match

# What the watchdog and the monitor print of a rank that waits, by release: prefix, then its lines. {g}: rank in the
# group, {s}: number of the operation, {o}: its type and sizes, {e}, {c}: enqueued last, completed last.
FORMATS = {
    "2.3": (
        "[PG 1 Rank {g}] Timeout at NCCL work: {s}, last enqueued NCCL work: {e}, last completed NCCL work: {c}.",
        "[PG 1 Rank {g}] Process group watchdog thread terminated with exception: [Rank {g}] {w}",
    ),
    "2.4": (
        "[PG 1 (TENSOR_MODEL_PARALLEL_GROUP) Rank {g}] Exception (either an error or timeout) detected by watchdog at"
        " work: {s}, last enqueued NCCL work: {e}, last completed NCCL work: {c}.",
    ),
    "2.5": (
        "[PG ID 1 PG GUID 4(TENSOR_MODEL_PARALLEL_GROUP) Rank {g}] Exception (either an error or timeout) detected by"
        " watchdog at work: {s}, last enqueued NCCL work: {e}, last completed NCCL work: {c}.",
    ),
    "2.8": (
        "[PG ID 1 PG GUID 4(TENSOR_MODEL_PARALLEL_GROUP) Rank {g}]  failure detected by watchdog at work sequence id:"
        " {s} PG status: last enqueued work: {e}, last completed work: {c}",
        "[PG ID 1 PG GUID 4(TENSOR_MODEL_PARALLEL_GROUP) Rank {g}] Process group watchdog thread terminated with"
        " exception: [Rank {g}] {w}",
    ),
    "2.15": (
        "[PG GUID 4(TENSOR_MODEL_PARALLEL_GROUP) Rank {g}]  failure detected by watchdog at work sequence id: {s} PG"
        " status: last enqueued work: {e}, last started work: {c} (BROADCAST), last completed work: {c}",
    ),
}
DUMP = "[PG ID 0 PG GUID 0(default_pg) Rank {g}] Received a dump signal due to a collective timeout from  rank 0 and we will try our best to dump the debug info. Last enqueued NCCL work: {e}, last completed NCCL work: {c}.This is most likely caused by incorrect usages of collectives"  # noqa: E501  (as torch writes it)


def work(seq: int, op: str, size: str = "NumelIn=64, NumelOut=64, ") -> str:
    return (
        f"Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType={op}, {size}Timeout(ms)=600000)"
        " ran for 600051 milliseconds before timing out."
    )


def waits(release: str, g: int, s: int, e: int, op: str = "ALLREDUCE", size: int = 64) -> list[str]:
    """Return the lines of a rank that waits in operation `s` and has enqueued `e` of them."""
    text = work(s, op, f"NumelIn={size}, NumelOut={size}, ")
    return [f"[Rank {g}] {text}", *(line.format(g=g, s=s, e=e, c=s - 1, w=text) for line in FORMATS[release])]


def judged(lines: list[tuple[str, str]], world: tuple[str, ...] = ()) -> list[tuple[Position, tuple[str, ...], str]]:
    """Return the answers to (rank, line)."""
    found = [report for number, (rank, text) in enumerate(lines, 1) for report in reports_in(number, text, rank)]
    return [(answer.position, answer.ranks, answer.text) for answer in standstills(found, world)]


def of_ranks(**lines: list[str]) -> list[tuple[str, str]]:
    """Return the lines of ranks, interleaved as launchers print them."""
    longest = max(map(len, lines.values()))
    turns = ((rank[1:], texts[turn]) for turn in range(longest) for rank, texts in lines.items() if turn < len(texts))
    return list(turns)


@pytest.mark.parametrize("release", FORMATS)
def test_rank_that_did_not_enqueue_is_behind(release: str) -> None:
    """Rank 9 is number 1 of its group; it waits in an earlier collective."""
    lines = of_ranks(
        r8=waits(release, 0, 1224, 1225), r9=waits(release, 1, 1223, 1223), r10=waits(release, 2, 1224, 1224)
    )
    ((position, ranks, text),) = judged(lines)
    assert (position, ranks) == (Position.BEHIND, ("9",))
    assert "rank 9 has not enqueued ALLREDUCE #1224 (NumelIn=64), which ranks 8, 10 wait for; the last is #1223" in text
    assert text.startswith("process group 1: " if release == "2.3" else "TENSOR_MODEL_PARALLEL_GROUP: ")


@pytest.mark.parametrize("release", FORMATS)
@pytest.mark.parametrize(
    ("op", "size", "text"),
    [
        ("BROADCAST", 64, "different collectives at #7: ranks 0, 1: ALLREDUCE #7 (NumelIn=64); rank 2: BROADCAST #7"),
        (
            "ALLREDUCE",
            32,
            "different sizes at #7: ranks 0, 1: ALLREDUCE #7 (NumelIn=64); rank 2: ALLREDUCE #7 (NumelIn=32)",
        ),
    ],
)
def test_rank_with_another_collective_diverged(release: str, op: str, size: int, text: str) -> None:
    lines = of_ranks(
        r0=waits(release, 0, 7, 7), r1=waits(release, 1, 7, 7), r2=waits(release, 2, 7, 7, op=op, size=size)
    )
    ((position, ranks, answer),) = judged(lines)
    assert (position, ranks) == (Position.DIVERGED, ("2",))
    assert text in answer


@pytest.mark.parametrize("release", FORMATS)
def test_equal_collectives_leave_no_rank_behind(release: str) -> None:
    """NCCL's calls return at once: ranks may have enqueued different counts beyond the one that all wait in."""
    lines = of_ranks(r0=waits(release, 0, 5, 9), r1=waits(release, 1, 5, 6))
    ((position, ranks, text),) = judged(lines)
    assert (position, ranks) == (Position.TOGETHER, ())
    assert "ranks 0, 1 wait in ALLREDUCE #5 (NumelIn=64)" in text


def test_sizes_may_differ_where_they_may() -> None:
    """All-to-all takes other sizes on each rank; a coalesced operation states none."""
    for op, sizes in (("ALLTOALL_BASE", (3, 5)), ("ALLREDUCE", (2**64 - 1, 5))):
        lines = of_ranks(r0=waits("2.8", 0, 7, 7, op, sizes[0]), r1=waits("2.8", 1, 7, 7, op, sizes[1]))
        assert [position for position, _, _ in judged(lines)] != [Position.DIVERGED]


def test_point_to_point_operations_are_not_compared() -> None:
    """A sender and a receiver run different operations, each with its own numbers."""
    lines = of_ranks(r0=waits("2.8", 0, 3, 3, "SEND"), r1=waits("2.8", 1, 9, 9, "RECV"))
    assert [position for position, _, _ in judged(lines)] == [Position.WAITING]


def test_coalesced_operation_of_one_rank() -> None:
    """2**64 - 1 elements are not stated; of the group's other rank the log has nothing."""
    text = work(1, "COALESCED", f"NumelIn={2**64 - 1}, NumelOut={2**64 - 1}, ")
    line = f"[PG ID 6 PG GUID 90(PIPELINE_MODEL_PARALLEL_GROUP) Rank 1] Process group watchdog thread terminated with exception: [Rank 1] {text}"  # noqa: E501  (as torch writes it)
    ((position, ranks, answer),) = judged([("10", line)])
    assert (position, ranks) == (Position.WAITING, ("number 0 of the group",))
    assert answer == (
        "PIPELINE_MODEL_PARALLEL_GROUP: number 0 of the group reports nothing, rank 10 waits in COALESCED #1"
    )


def test_dump_signal_names_the_rank_behind() -> None:
    """Its watchdog has nothing to wait for; the monitor states the last collective that it enqueued."""
    status = "[PG ID 0 PG GUID 0(default_pg) Rank 0]  failure detected by watchdog at work sequence id: 5 PG status: last enqueued work: 5, last completed work: 4"  # noqa: E501  (as torch writes it)
    lines = [("0", f"[Rank 0] {work(5, 'ALLREDUCE')}"), ("0", status), ("1", DUMP.format(g=1, e=4, c=4))]
    ((position, ranks, text),) = judged(lines)
    assert (position, ranks) == (Position.BEHIND, ("1",))
    assert (
        text == "default_pg: rank 1 has not enqueued ALLREDUCE #5 (NumelIn=64), which rank 0 waits for; the last is #4"
    )


def test_silent_rank_of_the_default_group_is_behind() -> None:
    status = "[PG ID 0 PG GUID 0(default_pg) Rank {g}]  failure detected by watchdog at work sequence id: 5 PG status: last enqueued work: 5, last completed work: 4"  # noqa: E501  (as torch writes it)
    lines = [(str(g), text) for g in (0, 1, 3) for text in (f"[Rank {g}] {work(5, 'ALLREDUCE')}", status.format(g=g))]
    ((position, ranks, _),) = judged(lines, world=("0", "1", "2", "3"))
    assert (position, ranks) == (Position.BEHIND, ("2",))


def test_numbers_of_unnamed_groups_are_not_compared() -> None:
    """torch 2.0 to 2.2 name no process group: number 5 of one may be number 700 of another."""
    lines = [
        ("0", f"[Rank 0] {work(5, 'ALLREDUCE', '')}"),
        ("1", f"[Rank 1] {work(700, 'BROADCAST', 'TensorShape=[8], ')}"),
    ]
    ((position, ranks, text),) = judged(lines)
    assert (position, ranks) == (Position.WAITING, ())
    assert "rank 1 waits in BROADCAST #700 (shape [8])" in text


def test_tag_behind_another_prefix_names_the_rank() -> None:
    """Ray writes actor and process before the line, a progress bar its last state."""
    text = f"(Worker pid=27, ip=10.0.0.1)  10%|#  |[rank13]:[E1013 03:22:49.68 ProcessGroupNCCL.cpp:1923] [Rank 1] {work(5, 'ALLREDUCE')}"  # noqa: E501  (as torch writes it)
    (report,) = reports_in(1, text, "")
    assert (report.rank, report.number) == ("13", 1)


def test_unset_sequence_number_is_left_out() -> None:
    """torch 2.3 prints what the memory held."""
    (report,) = reports_in(1, FORMATS["2.3"][0].format(g=2, s=1, e=76280750235782912, c=0))
    assert report.enqueued is None


@pytest.mark.parametrize(
    ("line", "ranks", "text"),
    [
        ("[Rank 0]: Rank 3 failed to pass monitoredBarrier in 3000 ms", ("3",), "rank 3 did not reach the monitored"),
        ("[Rank 0]: Ranks 1, 3 failed to pass monitoredBarrier in 9 ms", ("1", "3"), "ranks 1, 3 did not reach"),
        (
            "\t     [1, 2] finished collective #4, but didn't join collective #5 (count from 1)",
            ("1", "2"),
            "ranks 1, 2 did not join collective #5",
        ),
        (
            "\t - To our best knowledge, ranks [7] are the lagging ranks that caused this timeout. They never",
            ("7",),
            "rank 7 joined no collective",
        ),
    ],
)
def test_line_that_names_late_ranks(line: str, ranks: tuple[str, ...], text: str) -> None:
    (answer,) = stated(3, line)
    assert (answer.position, answer.ranks, answer.line) == (Position.BEHIND, ranks, 3)
    assert text in answer.text


@pytest.mark.parametrize(
    "line",
    ["iteration 10/ 500000 | lm loss: 1.0", "[Rank 0] all good", "monitoredBarrier passed", "WorkNCCL is a class", ""],
)
def test_other_lines_state_nothing(line: str) -> None:
    assert not list(reports_in(1, line))
    assert not list(stated(1, line))


def test_names_of_ranks_join_what_follows_each_other() -> None:
    assert name_all(["3"]) == "rank 3"
    assert name_all(["10", "0", "1", "2", "4", "5"]) == "ranks 0-2, 4, 5, 10"
    assert name_all(["process 7", "1"]) == "rank 1, process 7"
    assert name_all(["process 10", "process 9"]) == "process 9, process 10"
    members = [f"number {number} of the group" for number in (10, 0, 1, 2)]
    assert name_all([*members, "3"]) == "rank 3, numbers 0-2, 10 of the group"


def test_rank_of_the_default_group_counts() -> None:
    """`torchrun --role rank --tee 3` tags lines with [rank0]:, where 0 is a local rank."""
    line = "[rank0]:[PG ID 0 PG GUID 0(default_pg) Rank 4] " + work(5, "ALLREDUCE")
    assert [report.rank for report in reports_in(1, line, "0")] == ["4"]
    line = "[rank0]:[PG ID 1 PG GUID 4(TENSOR_MODEL_PARALLEL_GROUP) Rank 1] " + work(5, "ALLREDUCE")
    assert [report.rank for report in reports_in(1, line, "0")] == ["0"]


def test_tags_of_local_ranks_leave_no_rank_behind() -> None:
    """The tag [rank0]: of rank 4 is of a local rank, so rank 0 is not known to have a line."""
    default = "[PG ID 0 PG GUID 0(default_pg) Rank 4] " + work(5, "ALLREDUCE")
    tensor = "[PG ID 1 PG GUID 4(TENSOR_MODEL_PARALLEL_GROUP) Rank 1] " + work(7, "ALLREDUCE")
    (first, second) = match([f"[rank0]:{default}\n[rank0]:{tensor}\n"], ()).standstills
    assert [one.position for one in (first, second)] == [Position.WAITING, Position.WAITING]
    assert first.text.startswith("default_pg: numbers 0-3 of the group report nothing, rank 4 waits in ALLREDUCE #5")
    assert "number 0 of the group reports nothing, number 1 of the group waits in ALLREDUCE #7" in second.text
