"""The top of README.md is what the program prints and what the catalog has."""

from __future__ import annotations

from tests import readme_facts
from tests.unit.catalogs import real


def test_picture_shows_the_real_output() -> None:
    assert readme_facts.PICTURE.read_text("utf-8") == readme_facts.picture(real())


def test_numbers_are_those_of_the_catalog() -> None:
    assert f"<!-- numbers -->\n{readme_facts.numbers(real())}\n" in readme_facts.README.read_text("utf-8")
