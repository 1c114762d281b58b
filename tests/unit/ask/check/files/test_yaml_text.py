"""YAML as texts with lines."""

from __future__ import annotations

import pytest

from matrix.ask.check.files.declared import Text, line_of, load_yaml
from matrix.ground.errors import MatrixError


def test_numbers_stay_texts() -> None:
    """An image's tag 24.10 is no number."""
    assert load_yaml("tag: 24.10\nlr: 1e-5\non: yes\nday: 2026-11-23\nnothing:\n", "x") == [
        {"tag": "24.10", "lr": "1e-5", True: True, "day": "2026-11-23", "nothing": None}
    ]


@pytest.mark.parametrize(
    ("text", "first_line", "line"), [("a: b", 1, 1), ("\na:\n  b", 1, 3), ("a: |\n  b\n  c", 1, 2), ("a: b", 7, 7)]
)
def test_texts_have_their_line(text: str, first_line: int, line: int) -> None:
    (document,) = load_yaml(text, "x", first_line)
    assert isinstance(document["a"], Text)
    assert line_of(document["a"]) == line


@pytest.mark.parametrize(
    "text",
    ["a: {{ b }}: c", "a: [", "a: !!python/object:os.system x", "a: !reference [b]", "[" * 50_000, "a: " * 50_000],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(MatrixError, match="not YAML"):
        load_yaml(text, "x")


def test_every_document_is_read() -> None:
    assert load_yaml("---\na: b\n---\n---\nc: d", "x") == [{"a": "b"}, {"c": "d"}]
