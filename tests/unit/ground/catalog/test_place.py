"""The text of a place."""

import pytest

from matrix.ground.catalog.stack import Place


@pytest.mark.parametrize(
    ("place", "text"), [(Place("a.txt", 3), "a.txt:3"), (Place("command line"), "command line"), (Place("c:d"), "c:d")]
)
def test_line_is_shown_where_there_is_one(place: Place, text: str) -> None:
    assert str(place) == text
