"""The timeouts of a stop have a common limit."""

from __future__ import annotations

from matrix.prove.execution.ranks.rank_spec import OVERTIME_S, Timeouts


def test_stop_ends_within_its_overtime() -> None:
    usual = Timeouts()
    assert usual.stacks_s + usual.terminate_s + usual.kill_s + usual.sweep_s <= OVERTIME_S
