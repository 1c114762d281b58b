"""The picture of a failure's folder on its page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from matrix.catalog import folders
from matrix.report.failure_page import failure_page
from matrix.store.night import Night
from matrix.verdicts.outcome import RankEnd
from tests.unit.catalogs import failure
from tests.unit.report.samples import cell, record

CODE = """
from matrix.kit.svg import escape

def picture(values):
    return "".join(f"<p>{escape(case)} measured {escape(value)}</p>" for case, value in values if value)
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(folders, "FAILURES", tmp_path)
    return tmp_path


WHERE = cell()


def page() -> str:
    one = record(where=WHERE, case="peak")
    one = replace(one, outcome=replace(one.outcome, ranks=(RankEnd(0, 0, returned=True, value="<b>"), RankEnd(1, 0))))
    return failure_page(failure(id="dcp-assertion"), Night("one", (one,)), {}, {})


def test_a_page_shows_the_picture_of_its_folder(root: Path) -> None:
    (root / "dcp_assertion").mkdir()
    (root / "dcp_assertion" / "chart.py").write_text(CODE)
    assert f"<p>peak, mcore {WHERE.mcore} on {WHERE.base} measured &lt;b&gt;</p>" in page()


def test_a_folder_without_a_chart_has_no_picture(root: Path) -> None:
    assert "measured" not in page()
