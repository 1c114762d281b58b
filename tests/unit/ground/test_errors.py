"""Errors for users: their parts, and their bounds."""

from __future__ import annotations

from matrix.ground.errors import LONGEST, MatrixError, closest, counted


def test_a_value_of_megabytes_is_cut() -> None:
    """In each part, in the text and in one line."""
    huge = "x" * 10_000_000
    error = MatrixError(huge, where=huge, got=huge, expected=huge, fix=closest(huge, ["a", huge]))
    assert len(str(error)) < 6 * LONGEST
    assert len(error.brief) < 6 * LONGEST
    assert "... (10,000,000 characters)" in error.brief


def test_known_words_are_sorted_as_versions() -> None:
    assert (
        closest("x", ["2.10.0", "2.9.0", "torch-2.10", "torch-2.9"]) == "one of: torch-2.9, torch-2.10, 2.9.0, 2.10.0"
    )


def test_other_text_replaces_words_that_are_not_close() -> None:
    assert closest("abc", ["abd"], otherwise="look") == "did you mean abd?"
    assert closest("abc", ["xyz"], otherwise="look") == "look"


def test_one_has_no_plural() -> None:
    assert [counted(number, "case") for number in (0, 1, 2, 1234)] == ["0 cases", "1 case", "2 cases", "1,234 cases"]
    assert (counted(0.7, "minute"), counted(1.6, "minute")) == ("1 minute", "2 minutes")
