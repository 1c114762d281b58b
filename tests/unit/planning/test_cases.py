from __future__ import annotations

from dataclasses import replace

import pytest

from matrix.catalog.failure import CaseNeed, Expectation, Failure, Level
from matrix.catalog.stack import PYTHON, UNKNOWN, Value
from matrix.planning.cases import on_python
from tests.unit.catalogs import catalog, clause, failure, planned, real

ENTRY = failure(affected=(clause(python="<3.12"),), works=(clause(python=">=3.12"),))
CATALOG = catalog(ENTRY)
CASE = planned(CATALOG)


def test_a_case_moves_to_the_environments_python() -> None:
    moved = on_python(CATALOG, CASE, "3.12")

    assert (moved.key, moved.cell) == (CASE.key, CASE.cell.with_({PYTHON: "3.12"}))
    assert (CASE.expectation, moved.expectation) == (Expectation.BROKEN, Expectation.WORKS)


def test_a_given_expectation_stays() -> None:
    unknown = replace(CASE, expectation=Expectation.UNKNOWN)
    assert on_python(CATALOG, unknown, "3.12").expectation is Expectation.UNKNOWN


@pytest.mark.parametrize("python", ["3.10", UNKNOWN])
def test_the_planned_python_or_none_changes_nothing(python: Value) -> None:
    item = replace(CASE, cell=CASE.cell.with_({PYTHON: python}))
    assert on_python(CATALOG, item, "3.10") is item


@pytest.mark.parametrize("entry", real().failures, ids=lambda entry: str(entry.id))
def test_users_of_datasets_declare_the_helper(entry: Failure) -> None:
    """A case whose module uses GPTDataset fails in another way where the compiled helper is missing."""
    for case in entry.case:
        source = entry.folder / f"{case.function[0]}.py"
        uses = bool(case.run) and "gpt_dataset" in source.read_text(encoding="utf-8")
        assert CaseNeed.DATASET_HELPER in case.needs or case.levels == (Level.GPU,) or not uses, case.name
