"""A task of an array runs the cases of its keys."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from matrix.catalog.folders import ENTRY, FAILURES, folder_name
from matrix.execution.slurm import task
from matrix.planning.rerun import plan_entry
from matrix.store import night
from tests.unit.catalogs import catalog, failure, planned, real


def test_a_task_collects_the_failures_of_its_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other failures of the plan are not collected."""
    first, second = (one.id for one in real().failures[:2])
    item = planned(catalog(failure(first)))
    other = replace(item, failure=second)
    night.write_plan(tmp_path, [plan_entry(one) for one in (item, other)])
    collected: list[list[str]] = []

    def main(arguments: list[str]) -> int:
        collected.append(arguments)
        return 0

    monkeypatch.setattr(pytest, "main", main)
    assert task.in_this_interpreter(tmp_path)([item.key]) == 0
    assert collected == [[str(FAILURES / folder_name(first) / ENTRY)]]
