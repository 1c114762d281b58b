"""Names of files in the output folder."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from matrix.prove.store.paths import page_name
from tests.unit.show.samples import night


def test_page_names_are_unique() -> None:
    cells = dict.fromkeys(record.cell.id for record in night())
    assert len({page_name(cell) for cell in cells}) == len(cells)


@given(st.text(min_size=1))
def test_page_name_is_one_path_component(cell: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_.-]+\.html", page_name(cell))
    assert not page_name(cell).startswith(".") or cell.startswith(".")
    assert len(page_name(cell)) < 130
