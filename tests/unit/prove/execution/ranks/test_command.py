"""A command of the user's own in a real rank: how the rank's outcome describes its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from matrix.ground.verdicts.outcome import Outcome, OutcomeKind
from matrix.ground.verdicts.signature_match import shows
from matrix.kit.command import METRIC
from matrix.prove.bisection.ends import learned
from matrix.prove.bisection.user_command import OwnCommand
from matrix.prove.execution.ranks.rank_spec import RankJob
from matrix.prove.execution.ranks.supervisor import Supervisor
from tests.unit.prove.execution.ranks.marks import ranks_and_orphans

Run = Callable[..., Outcome]


@pytest.fixture
def run(supervisor: Supervisor, job: Callable[..., RankJob], tmp_path: Path, fresh: bool) -> Run:
    """Return a function that runs a command by the reproduction of its own failure."""

    def start(*words: str, deadline_s: float = 30.0, **arguments: Any) -> Outcome:
        own = OwnCommand(words, tmp_path)
        entry = own.write(tmp_path, own.entry(()))
        target = f"{entry.parent / 'reproduction.py'}:run_command"
        kwargs = {"command": list(words), "folder": str(tmp_path), **arguments}
        made = job("describe", fresh=fresh, world_size=1, kwargs=kwargs, deadline_s=deadline_s)
        return supervisor.run(replace(made, target=target))

    return start


@pytest.mark.parametrize(
    ("words", "kind", "reason"),
    [
        (("python", "-c", "pass"), OutcomeKind.PASSED, ""),
        (("python", "-c", "raise KeyError('loss')"), OutcomeKind.RAISED, "rank 0 raised: KeyError: 'loss'"),
        (("sh", "-c", "echo no space; exit 7"), OutcomeKind.EXITED, "rank 0 left with status 7"),
        (("python", "-c", "import os; os.kill(os.getpid(), 11)"), OutcomeKind.SIGNALED, "rank 0 died by SIGSEGV"),
        (("no-such-command",), OutcomeKind.UNAVAILABLE, "the command can't be started: no-such-command"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_the_outcome_is_the_commands(run: Run, words: Sequence[str], kind: OutcomeKind, reason: str) -> None:
    """A failure of each kind teaches a signature that it shows."""
    outcome = run(*words)

    assert (outcome.kind, outcome.reason.startswith(reason)) == (kind, True), outcome
    signature = learned(outcome)
    assert (signature is not None) is (kind not in (OutcomeKind.PASSED, OutcomeKind.UNAVAILABLE))
    assert signature is None or shows(outcome, signature)


def test_a_hanging_command_is_ended(run: Run, soon: float, mark: str) -> None:
    """With every process that it started."""
    outcome = run("sh", "-c", "sleep 600 & wait", deadline_s=soon)

    assert outcome.kind is OutcomeKind.HUNG
    assert ranks_and_orphans(mark) == {}


def test_numbers_reach_the_outcome(run: Run) -> None:
    outcome = run("sh", "-c", "echo time 1.5", metric="time (.*)", repeats=[2, 2, 0.0])

    assert outcome.ranks[0].value == {METRIC: [1.5, 1.5]}
