"""Stacks of ranks as faulthandler and py-spy print them."""

from __future__ import annotations

import faulthandler
import subprocess
import sys
from pathlib import Path

import pytest

from matrix.ground.verdicts.collectives import Position
from matrix.ground.verdicts.outcome import Frame
from matrix.ground.verdicts.rank_logs import StackReader, Stand, is_dump, stand_in, stand_of, standing

MEGATRON = Frame("/usr/lib/python3.11/site-packages/megatron/core/tensor_parallel/layers.py", 2, "forward")
OWN = Frame("/job/train.py", 23, "sync")
DIST = "/usr/lib/python3.11/site-packages/torch/distributed"
REDUCE = [Frame(f"{DIST}/distributed_c10d.py", 3252, "all_reduce"), Frame(f"{DIST}/c10d_logger.py", 83, "wrapper"), OWN]
SHARE = Stand("broadcast", Frame("/job/train.py", 28, "share"))
SYNC = Stand("all_reduce", OWN)
LOAD = Stand("", Frame("/job/data.py", 9, "load"))


def read(text: str) -> dict[str, tuple[int, Stand]]:
    reader = StackReader()
    for number, line in enumerate(text.splitlines(), 1):
        reader.take(number, line)
    reader.close()
    return reader.stacks


@pytest.mark.parametrize(
    ("frames", "stand"),
    [
        (REDUCE, SYNC),
        ([Frame("torch/distributed/distributed_c10d.py", 1, "gather"), OWN], Stand("gather", OWN)),
        ([Frame("libc.so.6", 0, "0x7f"), OWN], Stand("", OWN)),
        ([OWN, Frame("/job/train.py", 63, "<module>")], Stand("", OWN)),
        ([Frame("/usr/lib/python3.11/threading.py", 320, "wait"), OWN], Stand("", OWN)),
        ([Frame("selectors.py", 415, "select"), OWN], Stand("", OWN)),
        ([MEGATRON], Stand("", MEGATRON)),
        ([Frame("<string>", 1, "f")], Stand("", Frame("<string>", 1, "f"))),
        ([], None),
    ],
)
def test_stand_is_the_collective_and_its_caller(frames: list[Frame], stand: Stand | None) -> None:
    assert stand_of(frames) == stand


@pytest.mark.parametrize(
    ("stands", "silent", "position", "ranks"),
    [
        ({"0": SYNC, "1": SYNC, "2": LOAD}, [], Position.BEHIND, ("2",)),
        ({"0": SYNC, "1": SYNC, "2": SHARE}, [], Position.DIVERGED, ("2",)),
        ({"0": SYNC, "1": SHARE}, [], Position.DIVERGED, ("0", "1")),
        ({"0": SYNC, "1": SYNC}, [], Position.TOGETHER, ()),
        ({"0": SYNC, "1": SYNC}, ["2"], Position.BEHIND, ("2",)),
        ({"0": SYNC}, ["1", "2"], Position.WAITING, ("1", "2")),
        ({"0": LOAD, "1": LOAD, "2": Stand("", OWN)}, [], Position.DIVERGED, ("2",)),
        ({"0": LOAD, "1": Stand("", OWN)}, [], Position.WAITING, ()),
        ({"0": SYNC}, [], None, ()),
        ({}, ["1", "2"], None, ()),
    ],
)
def test_odd_rank_out_is_named(
    stands: dict[str, Stand], silent: list[str], position: Position | None, ranks: tuple[str, ...]
) -> None:
    answer = standing({rank: (int(rank) + 5, stand) for rank, stand in stands.items()}, silent)
    assert (answer.position, answer.ranks, answer.line) == (position, ranks, 5) if answer else position is None


def test_answer_names_where_each_rank_stands() -> None:
    answer = standing({"0": (1, SYNC), "1": (2, SYNC), "2": (3, LOAD)})
    assert answer is not None
    assert (
        answer.text == "ranks 0, 1 stand in all_reduce, called in sync (train.py:23); rank 2 stands in load (data.py:9)"
    )


def test_dump_of_this_python_is_read(tmp_path: Path) -> None:
    """The main thread is the oldest of a dump at a deadline: faulthandler prints it last."""
    script = tmp_path / "hang.py"
    script.write_text(
        "import faulthandler, threading, time\n"
        "def load():\n    time.sleep(1)\n"
        "threading.Thread(target=time.sleep, args=(1,)).start()\n"
        "faulthandler.dump_traceback_later(0.1)\nload()\n"
    )
    printed = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True).stderr
    assert "Timeout (0:00:00" in printed
    ((_, stand),) = read(printed).values()
    assert stand == Stand("", Frame(str(script), 3, "load"))


def test_thread_of_a_signal_is_the_current_one(tmp_path: Path) -> None:
    with (tmp_path / "stacks").open("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        ((_, stand),) = read(f"rank 3:\n{file.read()}").values()
    assert stand.own.function == "test_thread_of_a_signal_is_the_current_one"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Process 12: python train.py\nPython v3.12.3 (/usr/bin/python3.12)\n", True),
        ("\nProcess 12: python train.py\r\nPython v3.12.3 (/usr/bin/python3.12)\n", True),
        ("Process 12: started\niteration 10\n", False),
        ("", False),
    ],
)
def test_log_that_begins_as_a_dump(text: str, expected: bool) -> None:
    assert is_dump(text) == expected


@pytest.mark.parametrize("tag", ["  ", " ", ""])
def test_launchers_may_take_a_space_of_frames(tag: str) -> None:
    """A prefix such as `[rank3]: ` ends with a space, torchrun's `[default3]:` does not."""
    text = f'Timeout (0:10:00)!\nThread 0x00007f247a3d6b80 (most recent call first):\n{tag}File "a.py", line 3 in f\n'
    assert read(text) == {"": (2, Stand("", Frame("a.py", 3, "f")))}


def test_fatal_error_is_a_crash_not_a_hang() -> None:
    text = 'Fatal Python error: Aborted\n\nThread 0x00007f2 (most recent call first):\n  File "a.py", line 3 in f\n'
    assert read(text.replace("Fatal Python error: Aborted", "Timeout (0:10:00)!"))
    assert not read(text)


def test_process_of_py_spy_names_its_main_thread() -> None:
    text = (
        'Process 12: python train.py\nPython v3.12.3 (/usr/bin/python3.12)\n\nThread 14 (idle): "pt_nccl"\n'
        '    wait (threading.py:359)\nThread 12 (active+gil): "MainThread"\n    0x7f (libc.so.6)\n    f (a.py:23)\n'
    )
    assert read(text) == {"process 12": (6, Stand("", Frame("a.py", 23, "f")))}


DUMP = """\
Thread 0x00007f2b6f7fe640 (most recent call first):
  File "/usr/lib/python3.10/threading.py", line 324 in wait
  File "/usr/lib/python3.10/threading.py", line 607 in wait

{main} (most recent call first):
  File "/usr/lib/a b/site-packages/torch/distributed/distributed_c10d.py", line 2288 in all_reduce
  File "body.py", line 3 in body
"""


@pytest.mark.parametrize(
    "main",
    [
        "Current thread 0x00007f2b84e1c740",
        "Thread 0x00007f2b84e1c740",
        "Current thread 0x00007f2b84e1c740 [python3]",
    ],
)
def test_stand_of_the_main_thread_is_found(main: str) -> None:
    assert stand_in(DUMP.format(main=main)) == Stand("all_reduce", Frame("body.py", 3, "body"))


def test_current_thread_precedes_the_last_thread() -> None:
    text = (
        'Current thread 0x1 (most recent call first):\n  File "a.py", line 1 in a\n\n'
        'Thread 0x2 (most recent call first):\n  File "b.py", line 2 in b\n'
    )
    assert stand_in(text) == Stand("", Frame("a.py", 1, "a"))


def test_last_of_three_threads_is_the_main_one() -> None:
    threads = [f'Thread 0x{n} (most recent call first):\n  File "{n}.py", line {n} in f\n' for n in (1, 2, 3)]
    assert stand_in("\n".join(threads)) == Stand("", Frame("3.py", 3, "f"))


@pytest.mark.parametrize("text", ["", "no answer to SIGUSR1: the process is gone\n"])
def test_text_without_a_dump_has_no_frame(text: str) -> None:
    assert stand_in(text) is None
