"""Which rank is behind, by the logs of jobs that hang on purpose.

The logs of rank_logs/ are those of four gloo ranks on torch 2.13 that torchrun started with --tee 3, and outputs of
py-spy 0.4: one rank skips a collective, calls two in another order or with another size, raises, is killed, or sleeps
while it loads data; with TORCH_DISTRIBUTED_DEBUG=DETAIL (detail_), or dump_traceback_later (dump_). Paths are changed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from matrix.ground.verdicts.collectives import Position
from matrix.ground.verdicts.log_match import Reading, match, match_logs
from matrix.ground.verdicts.rank_logs import RankLog, rank_of
from matrix.ground.verdicts.tracebacks import HEADER

DIST = "/site-packages/torch/distributed"
LOGS = Path(__file__).parent / "rank_logs"
REDUCE = "in all_reduce, called in sync (train.py:23)"


@pytest.mark.parametrize(
    ("name", "position", "ranks", "text"),
    [
        ("skip.log", Position.BEHIND, ("1",), f"ranks 0, 2, 3 stand {REDUCE}"),
        ("order.log", Position.DIVERGED, ("2",), "rank 2 stands in broadcast, called in share (train.py:28)"),
        (
            "sizes.log",
            Position.FAILED,
            ("0",),
            "rank 0: SIGABRT, reported by terminate: gloo::EnforceNotMet: [enforce fail",
        ),
        ("die.log", Position.FAILED, ("2",), f"rank 2: KeyError: 'text'; waited for it: ranks 1, 3 {REDUCE}"),
        ("segv.log", Position.FAILED, ("2",), "rank 2: SIGSEGV, reported by faulthandler, in step"),
        ("kill.log", Position.BEHIND, ("2",), f"ranks 1, 3 stand {REDUCE}"),
        ("sleep.log", Position.BEHIND, ("2",), f"ranks 0, 1, 3 stand {REDUCE}"),
        ("monitored.log", Position.BEHIND, ("3",), "ranks 0-2 stand in monitored_barrier, called in main"),
        ("detail_order.log", Position.DIVERGED, ("2",), "ranks 0, 1, 3: ALLREDUCE #6 (shape [8]); rank 2: BROADCAST"),
        ("detail_sizes.log", Position.DIVERGED, ("1",), "different sizes at #6: ranks 0, 2, 3: ALLREDUCE #6"),
        ("detail_skip.log", Position.BEHIND, ("1",), "rank 1 did not reach the monitored barrier in 4000 ms"),
        ("dump_skip.log", Position.BEHIND, ("1",), f"ranks 0, 2, 3 stand {REDUCE}; rank 1 stands in main"),
        ("dump_sleep.log", Position.BEHIND, ("2",), "rank 2 stands in load_batch (train.py:18)"),
        ("pyspy_sleep.txt", Position.BEHIND, ("process 11519",), "process 11519 stands in load_batch (train.py:18)"),
        ("pyspy_order.txt", Position.DIVERGED, ("process 12708",), "process 12708 stands in broadcast, called in"),
    ],
)
def test_log_names_the_rank_that_others_wait_for(
    name: str, position: Position, ranks: tuple[str, ...], text: str
) -> None:
    answer = match([(LOGS / name).read_text(encoding="utf-8")], ()).standstills[0]
    assert (answer.position, answer.ranks) == (position, ranks)
    assert text in answer.text


def of_ranks(name: str, **ranks: str) -> Reading:
    """Return the reading of a job's log split into one log a rank, by their names; torchrun's tags are cut off."""
    lines = (LOGS / name).read_text(encoding="utf-8").splitlines()
    logs = []
    for log_rank, rank in ranks.items():
        tag = f"[default{log_rank[1:]}]:"
        own = [line.removeprefix(tag) for line in lines if line.startswith(tag)]
        logs.append((RankLog(f"{log_rank}/stderr.log", rank), ["\n".join(own) + "\n"]))
    return match_logs(logs, ())


@pytest.mark.parametrize(
    ("name", "position", "ranks"),
    [
        ("skip.log", Position.BEHIND, ("1",)),
        ("sleep.log", Position.BEHIND, ("2",)),
        ("order.log", Position.DIVERGED, ("2",)),
        ("die.log", Position.FAILED, ("2",)),
        ("dump_sleep.log", Position.BEHIND, ("2",)),
        ("kill.log", Position.WAITING, ("0", "2")),  # torchrun stopped rank 0, and its report is in no rank's log
    ],
)
def test_logs_of_ranks_name_the_same_rank(name: str, position: Position, ranks: tuple[str, ...]) -> None:
    reading = of_ranks(name, _0="0", _1="1", _2="2", _3="3")
    answer = reading.standstills[0]
    assert (answer.position, answer.ranks) == (position, ranks)
    log, line = reading.place(answer.line)
    assert log in {"_0/stderr.log", "_1/stderr.log", "_2/stderr.log"}
    assert line > 1


def test_tagged_lines_name_the_rank_of_a_log() -> None:
    """On the second node of a job, local rank 0 is rank 1: its lines say so, its stack does not."""
    reading = of_ranks("dump_skip.log", _0="0", _2="1", _3="3")
    assert "ranks 0, 2, 3 stand in all_reduce" in reading.standstills[0].text


def test_errors_of_torchrun_are_of_no_rank() -> None:
    """`srun --label torchrun` tags the agent's lines with the number of its node."""
    frames = f'  File "{DIST}/elastic/multiprocessing/api.py", line 86, in _terminate_process_handler\n    raise\n'
    agent = f"{HEADER}\n{frames}SignalException: Process 6849 got signal: 15\n"
    agents = "".join(f"{node}: {line}\n" for node in (0, 1) for line in agent.splitlines())
    assert not match([agents], ()).standstills


def test_lines_of_several_logs_are_placed() -> None:
    logs = [(RankLog(name, ""), ["a\nValueError: b\n"]) for name in ("x.log", "y.log")]
    reading = match_logs(logs, ())
    assert [reading.place(line) for line in (1, 2, 3, 4)] == [("x.log", 1), ("x.log", 2), ("y.log", 1), ("y.log", 2)]
    assert (reading.lines, match(["a\nb\n"], ()).place(2)) == (4, ("", 2))


def test_long_dump_is_read_to_its_end() -> None:
    """No line of py-spy's has a word of an error: the ranks behind the first 64 KiB are read, too."""
    dump = (LOGS / "pyspy_sleep.txt").read_text(encoding="utf-8")
    head, _, last = dump.partition("Process 11519")
    many = "".join(head.replace("Process 115", f"Process {number}") for number in range(300, 500))
    assert len(many) > 2 * 65_536
    answer = match([f"{many}Process 11519{last}"], ()).standstills[0]
    assert (answer.position, answer.ranks) == (Position.BEHIND, ("process 11519",))


def test_received_sizes_are_stated() -> None:
    _, answer = match([(LOGS / "sizes.log").read_text(encoding="utf-8")], ()).standstills
    assert answer.text == "rank 0 received 8 bytes where it expected 4: sizes or collectives differ"


def test_barriers_that_others_failed_are_consequences() -> None:
    """Only the rank that did not come has no error: the errors of the others follow from it."""
    reading = match([(LOGS / "monitored.log").read_text(encoding="utf-8")], ())
    assert not reading.unknown
    assert any("failed to pass monitoredBarrier" in fault.what for fault in reading.follows)


@pytest.mark.parametrize(
    ("tags", "log_rank", "rank"),
    [
        ("[rank10]:", "", "10"),
        ("[default2]:[rank10]:", "", "10"),
        ("[default2]:", "", "2"),
        ("[default2]:", "10", "10"),
        ("[1,3]<stderr>:", "", "3"),
        ("17:", "", "17"),
        ("1:[default0]:", "", "1/0"),
        ("1:[default0]:[rank8]:", "", "8"),
        ("1:", "4", "4"),
        ("", "4", "4"),
        ("", "", ""),
    ],
)
def test_rank_is_the_one_of_the_innermost_tag(tags: str, log_rank: str, rank: str) -> None:
    """torchrun's own tag has the local rank."""
    assert rank_of(tags, log_rank) == rank


def test_dumps_within_a_log_are_read() -> None:
    """The log of a job in which a script calls py-spy."""
    lines = (LOGS / "pyspy_sleep.txt").read_text(encoding="utf-8").splitlines()
    dumps = "\n".join(line for line in lines if "xception" not in line)  # no other word that is searched for
    (answer,) = match([f"iteration 3 | consumed samples: 3\n+ py-spy dump\n{dumps}"], ()).standstills
    assert (answer.position, answer.ranks) == (Position.BEHIND, ("process 11519",))
