"""The stacks of processes, and the kernel's view of one."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from matrix.prove.execution.ranks.rank_process import answers, kernel_view, spy_on


def test_kernel_view_contains_state_and_blocked_signals() -> None:
    view = kernel_view(os.getpid())
    assert view.startswith("state R (running), blocked signals 0")


def test_kernel_view_of_an_ended_process(tmp_path: Path) -> None:
    assert kernel_view(1, tmp_path) == "the process is gone"


def test_spy_on_without_py_spy_returns_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert spy_on([os.getpid()]) == []


def test_only_a_signal_with_a_handler_answers(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "status").write_text(f"SigCgt:\t{1 << (signal.SIGUSR1 - 1):016x}\n")
    assert answers(1, signal.SIGUSR1, tmp_path)
    assert not answers(1, signal.SIGUSR2, tmp_path)
    assert not answers(2, signal.SIGUSR1, tmp_path)
