"""A task of an array runs the cases of its keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from matrix.ground.catalog.folders import ENTRY, SITE
from matrix.prove.execution.slurm import task
from matrix.prove.store.paths import write_whole
from tests.unit.catalogs import catalog, failure, planned


def test_a_task_collects_the_failures_of_its_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the site's folder too; other failures of the plan are not collected."""
    for name in ("save_breaks", "start_crashes"):
        write_whole(tmp_path / "site" / name / ENTRY, "")
    monkeypatch.setenv(SITE, str(tmp_path / "site"))
    item = planned(catalog(failure("save-breaks")))
    collected: list[list[str]] = []

    def main(arguments: list[str]) -> int:
        collected.append(arguments)
        return 0

    monkeypatch.setattr(pytest, "main", main)
    assert task.in_this_interpreter()([item.key]) == 0
    assert collected == [["-p", "matrix.prove.execution.plugin", str(tmp_path / "site" / "save_breaks" / ENTRY)]]
