"""Parsing stack dumps, and the kernel's view of a process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from matrix.verdicts.outcome import Frame
from matrix.verdicts.stacks import innermost, kernel_view, spy_on

DUMP = """\
Thread 0x00007f2b6f7fe640 (most recent call first):
  File "/usr/lib/python3.10/threading.py", line 324 in wait
  File "/usr/lib/python3.10/threading.py", line 607 in wait

{main} (most recent call first):
  File "/usr/lib/a b/torch/distributed/distributed_c10d.py", line 2288 in all_reduce
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
def test_innermost_frame_of_the_main_thread_is_found(main: str) -> None:
    assert innermost(DUMP.format(main=main)) == Frame(
        "/usr/lib/a b/torch/distributed/distributed_c10d.py", 2288, "all_reduce"
    )


def test_current_thread_precedes_the_last_thread() -> None:
    text = (
        'Current thread 0x1 (most recent call first):\n  File "a.py", line 1 in a\n\n'
        'Thread 0x2 (most recent call first):\n  File "b.py", line 2 in b\n'
    )
    assert innermost(text) == Frame("a.py", 1, "a")


@pytest.mark.parametrize("text", ["", "no answer to SIGUSR1: the process is gone\n"])
def test_text_without_a_dump_has_no_frame(text: str) -> None:
    assert innermost(text) is None


def test_kernel_view_contains_state_and_blocked_signals() -> None:
    view = kernel_view(os.getpid())
    assert view.startswith("state R (running), blocked signals 0")


def test_kernel_view_of_an_ended_process(tmp_path: Path) -> None:
    assert kernel_view(1, tmp_path) == "the process is gone"


def test_spy_on_without_py_spy_returns_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert spy_on([os.getpid()]) == []
