"""Which search attributes a change between two stacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from matrix.prove.bisection.odds import JudgedRuns, StackEffect
from matrix.prove.bisection.stack_comparison import CompareArguments, search_of, shows
from matrix.prove.bisection.turns import JudgedTest
from matrix.prove.bisection.user_command import OwnCommand

OWN = OwnCommand(("pytest",), Path("/tmp"))
TRIAL: Any = None


@pytest.mark.parametrize(("failures", "runs", "part"), [(3, 3, 1.0), (0, 0, 1.0), (5, 10, 0.35), (1, 40, 0.1)])
def test_flaky_break_is_searched_below_its_rate(failures: int, runs: int, part: float) -> None:
    assert shows(JudgedRuns(StackEffect.NEW, (0, failures), (runs, runs))) == pytest.approx(part)


def test_one_test_or_number_decides_the_search() -> None:
    arguments = CompareArguments(
        "torch-2.5.1", "torch-2.3.1", Path("out"), OWN, junit="o.xml", metrics={"step": "t:(.*)"}
    )
    broken = JudgedTest("a.test_b", TRIAL, JudgedRuns(StackEffect.NEW, (0, 3), (3, 3)))
    options, command = search_of(arguments, OWN, broken)
    assert (options.question.good, options.question.bad) == ("torch-2.5.1", "torch-2.3.1")
    assert command.tested == {"junit": "o.xml", "test": "a.test_b"}

    slower = JudgedTest("step", TRIAL, JudgedRuns(StackEffect.WORSE, interval=(1.04, 1.06)), number=True)
    options, command = search_of(arguments, OWN, slower)
    assert (command.metric, command.tested) == ("t:(.*)", {})
    assert options.worse_than == pytest.approx(0.025, rel=0.02)


def test_folder_depends_on_what_runs() -> None:
    first = CompareArguments("torch-2.5.1", "torch-2.3.1", Path("out"), OWN)

    assert first.folder != CompareArguments("torch-2.5.1", "torch-2.3.1", Path("out"), OWN, junit="o.xml").folder
    assert first.folder != CompareArguments("torch-2.3.1", "torch-2.5.1", Path("out"), OWN).folder
