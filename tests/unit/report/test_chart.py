"""The chart of a failure's folder on the failure's page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from matrix.report.failure_page import failure_page
from matrix.store.night import Night
from matrix.verdicts.outcome import RankEnd
from tests.unit.catalogs import catalog, failure
from tests.unit.report.samples import cell, record, stack_map

CODE = """
from matrix.kit.svg import escape

def picture(values):
    return "".join(f"<p>{escape(case)} measured {escape(value)}</p>" for case, value in values if value)
"""


WHERE = cell()


def page(folder: Path) -> str:
    one = record(where=WHERE, case="peak")
    one = replace(one, outcome=replace(one.outcome, ranks=(RankEnd(0, 0, returned=True, value="<b>"), RankEnd(1, 0))))
    entry = failure(one.failure, folder=folder)
    return failure_page(entry, stack_map(catalog(entry)), Night("one", (one,)), {}, {})


def test_page_shows_the_chart_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "chart.py").write_text(CODE)
    assert f"<p>peak, mcore {WHERE.mcore} on {WHERE.base} measured &lt;b&gt;</p>" in page(tmp_path)


def test_folder_without_chart_adds_nothing(tmp_path: Path) -> None:
    assert "measured &lt;b&gt;" not in page(tmp_path)
