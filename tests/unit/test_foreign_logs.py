"""Programs whose logs `match` must not name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests import foreign_logs
from tests.foreign_logs import Program

PYTHON = Path(sys.executable)
SYMBOL = "undefined symbol: _ZN3c105ErrorC2ENS_14SourceLocationESs"


@pytest.mark.parametrize(
    ("code", "defect"),
    {
        "nothing is named": ("{'layers': 2}['hidden_size']", None),
        "a failure is named": (f"raise ImportError('/x/flash_attn_2_cuda.so: {SYMBOL}')", "certain "),
        "a kind is named": (f"raise ImportError('/x/apex_C.so: {SYMBOL}')", "KIND "),
        "it does not fail": ("pass", "the program did not fail"),
    }.values(),
)
def test_answers_to_foreign_logs_are_judged(code: str, defect: str | None) -> None:
    defects = foreign_logs.defects(PYTHON, Program("python", code))
    assert [item.startswith(defect or "-") for item in defects] == ([True] if defect else [])


def test_commands_of_a_shell_are_judged() -> None:
    failing = f'echo "ImportError: /x/apex_C.so: {SYMBOL}"; exit 3'
    assert foreign_logs.defects(PYTHON, Program("shell", failing, "bash"))[0].startswith("KIND ")
    assert foreign_logs.defects(PYTHON, Program("shell", "ls /no/such/folder", "ls")) == []


def test_there_are_sixty_programs() -> None:
    programs = foreign_logs.programs()
    assert len([program for program in programs if program.package not in ("torch", "shell")]) >= 60
    assert len([program for program in programs if program.tool]) >= 120


def test_missing_package_is_seen() -> None:
    assert foreign_logs.has_package(PYTHON, "pytest")
    assert not foreign_logs.has_package(PYTHON, "no_such_package_of_anyone")
    assert foreign_logs.can_run(PYTHON, Program("shell", "", "bash"))
    assert not foreign_logs.can_run(PYTHON, Program("shell", "", "no-such-tool-of-anyone"))
