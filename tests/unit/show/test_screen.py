"""The output of a run: a line for each case that ends; progress on a terminal only."""

from __future__ import annotations

import re
import sys

import pytest

from matrix.ground.verdicts.record import Record, Verdict
from matrix.show.screen import Screen
from tests.unit.show.samples import cell, record
from tests.unit.terminals import Terminal, piped, shown, words

LONG = cell("ngc-24.03", "0.9.0rc0+094d66b", "1.9.0.dev0+f9dd37f", "470.161.03")
NAME = "ngc-24.03/mcore-0.9.0rc0+094d66b/te-1.9.0.dev0+f9dd37f/driver-470.161.03"


def test_line_counts_and_names_the_case() -> None:
    screen = Screen(24)
    lines = [piped(screen.line(record(Verdict.REPRODUCED))) for _ in range(3)]
    assert lines[2] == "[ 3/24] dud-assertion tp2 cpu torch-2.4.0/mcore-0.8.0 reproduced 1.1 s\n"


def test_line_of_a_red_case_has_the_reason() -> None:
    first, *rest = shown(Screen(1).line(record(Verdict.UNEXPLAINED))).splitlines()
    assert first.endswith("unexplained 1.1 s")
    assert "_write_item() missing" in " ".join(rest)


def test_line_names_the_run_of_a_cached_verdict() -> None:
    assert piped(Screen(1).line(record(cached_from="a"))).endswith("holds from a\n")


@pytest.mark.parametrize("width", [16, 40, 80, 120])
def test_cell_of_a_line_is_never_cut(width: int) -> None:
    line = shown(Screen(100).line(record(where=LONG)), width=width)
    assert NAME in line
    assert words(line) == f"[ 1/100] dud-assertion tp2 cpu {NAME} holds 1.1 s ".replace("[ ", "[  ").replace(
        "[  ", "[ "
    )
    assert max(map(len, line.splitlines())) <= max(width, len(NAME) + len("[  1/100] "))


def terminal_of(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Return stdout, made a terminal of 80 columns."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    return stream


def run(screen: Screen, one: Record, other: Record) -> None:
    with screen.animated():
        screen.begin(other.key)
        screen.begin(one.key)
        screen.show(one)


def test_terminal_shows_progress_and_running_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_of(monkeypatch)
    one, other = record(), record(where=LONG)
    run(Screen(2), one, other)
    printed = terminal.getvalue()
    assert "dud-assertion tp2 cpu torch-2.4.0/mcore-0.8.0" in printed
    assert "1/2" in printed
    assert other.cell.id in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|[\r\n]", "", printed.partition("1/2")[2])
    assert f"now: {one.key}" not in printed.partition("1/2")[2]


def test_log_and_pipe_get_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    run(Screen(2), record(), record(where=LONG))
    assert capsys.readouterr().out == "[1/2] dud-assertion tp2 cpu torch-2.4.0/mcore-0.8.0 holds 1.1 s\n"


def test_cursor_returns_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_of(monkeypatch)
    with pytest.raises(KeyboardInterrupt), Screen(2).animated():
        raise KeyboardInterrupt
    assert terminal.getvalue().rfind("\x1b[?25h") > terminal.getvalue().rfind("\x1b[?25l")


def test_log_states_the_remaining_time_each_minute(capsys: pytest.CaptureFixture[str]) -> None:
    times = iter([0.0, 30.0, 120.0, 120.0, 150.0])
    screen = Screen(10, lambda: next(times))
    screen.open([record(Verdict.UNAVAILABLE)] * 4)
    for _ in range(3):
        screen.show(record())
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in printed if "left" in line] == ["6 of 10 cases ended, about 4 minutes left"]
    assert printed[3] == "6 of 10 cases ended, about 4 minutes left"
