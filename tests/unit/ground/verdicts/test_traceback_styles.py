"""Tracebacks as pytest and Rich print them: real output, read by the parser of a log."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pytest

from matrix.ground.verdicts.log_match import match
from matrix.ground.verdicts.outcome import Frame
from matrix.ground.verdicts.tracebacks import LoggedException, Tracebacks

TEST = """
import planner

def test_save():
    planner.save({})

def test_bare():
    assert 1 == 2, "one is not two"

async def unused(): ...

def test_cause():
    try:
        planner.save({})
    except AssertionError as error:
        raise TypeError("expected string or bytes-like object") from error
"""
PLANNER = """
def save(items):
    values = [
        1]
    return create_plan(items)

def create_plan(md):
    if not md:
        raise AssertionError(f"item.index.fqn not in {md}")
"""
# Printed by Rich 14 on a console of 100 columns.
RICH = """\
starting
╭─────────────────────────────── Traceback (most recent call last) ────────────────────────────────╮
│ in <module>:17                                                                                   │
│                                                                                                  │
│ /venv/lib/python3/site-packages/torch/distributed/checkpoint/some_long_folder_name_here_t_folded │
│ _here/default_planner.py:6 in outer                                                              │
│                                                                                                  │
│   3 │   x = 1                                                                                    │
│   4 │   assert x in a, "item.index.fqn not in md"                                                │
│   5 def outer():                                                                                 │
│ ❱ 6 │   create_default_global_save_plan([])                                                      │
│   7                                                                                              │
│                                                                                                  │
│ /venv/lib/python3/site-packages/torch/distributed/checkpoint/default_planner.py:4 in             │
│ create_default_global_save_plan                                                                  │
│                                                                                                  │
│ ❱ 4 │   assert x in a, "item.index.fqn not in md"                                                │
│                                                                                                  │
│ ╭─────────────────── locals ───────────────────╮                                                 │
│ │ a = '/x/y.py:3 in z'                         │                                                 │
│ ╰──────────────────────────────────────────────╯                                                 │
╰──────────────────────────────────────────────────────────────────────────────────────────────────╯
AssertionError: item.index.fqn not in md

The above exception was the direct cause of the following exception:

╭─────────────────────────────── Traceback (most recent call last) ────────────────────────────────╮
│ in <module>:24                                                                                   │
╰──────────────────────────────────────────────────────────────────────────────────────────────────╯
TypeError: get_cpu_offload_context() takes from 0 to 4 positional arguments but 5 were given and
this goes on
stopping
"""


def read(lines: Iterable[str]) -> list[LoggedException]:
    tracebacks = Tracebacks()
    found = [one for number, line in enumerate(lines, start=1) for one in tracebacks.take(number, line)]
    return [*found, *tracebacks.close()]


@pytest.mark.parametrize("style", ["short", "long", "auto", "native"])
def test_output_of_pytest_is_read(style: str, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TEST)
    (tmp_path / "planner.py").write_text(PLANNER)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--tb={style}", "-rN", "test_it.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    found = read(done.stdout.splitlines())
    place = ("planner.py", 9, "create_plan")
    expected = [
        ("AssertionError", "item.index.fqn not in {}", place),
        ("AssertionError", "one is not two", ("test_it.py", 8, "test_bare")),
        ("AssertionError", "item.index.fqn not in {}", place),
        ("TypeError", "expected string or bytes-like object", ("test_it.py", 16, "test_cause")),
    ]
    shown = [(one.raised.type, one.raised.message.partition("\n")[0], one.raised.frames[-1]) for one in found]
    assert [(kind, message, (Path(frame.file).name, frame.line, frame.function)) for kind, message, frame in shown] == (
        expected
    )


def test_summary_of_pytest_is_an_error_alone() -> None:
    [found] = read(["FAILED tests/test_it.py::test_save[a - b] - TypeError: this broke..."])
    assert (found.raised.type, found.raised.message, found.alone) == ("TypeError", "this broke...", True)


def test_boxes_of_rich_are_read() -> None:
    """Places and messages are wrapped at the width of the console; a box of local variables is not read."""
    first, second = read(RICH.splitlines())
    folder = "/venv/lib/python3/site-packages/torch/distributed/checkpoint"
    assert first.raised.frames == (
        Frame("", 17, "<module>"),
        Frame(f"{folder}/some_long_folder_name_here_t_folded_here/default_planner.py", 6, "outer"),
        Frame(f"{folder}/default_planner.py", 4, "create_default_global_save_plan"),
    )
    assert (first.line, first.raised.message, first.alone) == (23, "item.index.fqn not in md", False)
    assert second.raised.message == (
        "get_cpu_offload_context() takes from 0 to 4 positional arguments but 5 were given and this goes on"
    )
    assert first.chain == second.chain


def test_frames_of_other_output_are_forgotten() -> None:
    log = ["main.c:3: in function", "compiling", "E   TypeError: this broke", "done"]
    [found] = read(log)
    assert (found.raised.frames, found.alone) == ((), True)


def test_pytest_error_at_the_end_counts() -> None:
    """The place below it is missing."""
    log = ["    def save(items):", ">       fail()", "", "E       TypeError: this broke"]
    [found] = read(log)
    assert (found.line, found.raised.message, found.alone) == (4, "this broke", True)


CUT: Final = (
    '  File "/x/megatron/training/training.py", line 640, in train_step',
    "    losses_reduced = forward_backward_func(",
    "                     ^^^^^^^^^^^^^^^^^^^^^^",
    '  File "/x/megatron/core/models/gpt/gpt_model.py", line 99, in forward',
    "    return module(",
    "TypeError: f() got an unexpected keyword argument 'a'",
)


@pytest.mark.parametrize(
    "prefix",
    ["", "    ", "node-12: ", "gpu-a: [rank3]: ", "[rank0]:", "worker_1  | ", "#12 34.56 ", "> ", "ERROR: ",
     "[2026-11-27 10:11:12,123] [ERROR] [rank 3] ", "(raylet, ip=10.0.0.1) ", "E   "],
)  # fmt: skip
@pytest.mark.parametrize("first", [0, 1])
def test_frames_without_header_have_any_prefix(prefix: str, first: int) -> None:
    (fault,) = match(["".join(f"{prefix}{line}\n" for line in CUT[first:])], ()).unknown
    assert fault.raised is not None
    assert [frame.function for frame in fault.raised.frames] == ["train_step", "forward"][first:]


@pytest.mark.parametrize("first", [0, 1])
def test_frames_pasted_without_indentation_are_kept(first: int) -> None:
    (fault,) = match(["".join(f"{line.strip()}\n" for line in CUT[first:])], ()).unknown
    assert fault.raised is not None
    assert [frame.function for frame in fault.raised.frames] == ["train_step", "forward"][first:]
