"""Files of which something can't be understood: none is an all-clear, and each answer names the place."""

from __future__ import annotations

from pathlib import Path

import pytest

from matrix.ask.check.checking import Question, check
from matrix.ask.check.declaring import declared_stack, read
from matrix.ground.catalog.schema import read_toml
from tests.unit.catalogs import real

INPUTS = read_toml(Path(__file__).parent / "inputs" / "unreadable.toml")["input"]


@pytest.mark.parametrize("number", range(len(INPUTS)))
def test_what_is_not_understood_is_unknown(number: int, tmp_path: Path) -> None:
    item = INPUTS[number]
    path = tmp_path / item["file"]
    path.write_text(item["text"])

    stack, jobs = declared_stack(real(), read([str(path)]))
    result = check(real(), stack, Question(jobs), {})

    places = [f"{one.text} ({one.place})" for one in result.unknown]
    assert result.answer.status() == item.get("status", 3), places
    assert [name for name in item["unread"] if not any(name in place and str(path) in place for place in places)] == []
