"""Facts next to a failure's code."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from matrix.errors import MatrixError
from matrix.kit.facts import Range, newer, read_facts


@dataclass(frozen=True)
class Facts:
    te: Range


def test_facts_are_read_with_ranges(tmp_path: Path) -> None:
    (tmp_path / "facts.toml").write_text('te = ">=1.8"\n')
    assert "1.9.0" in read_facts(Facts, tmp_path / "facts.toml").te


def test_error_of_a_fact_names_file_and_key(tmp_path: Path) -> None:
    (tmp_path / "facts.toml").write_text("te = 1\n")
    with pytest.raises(MatrixError) as caught:
        read_facts(Facts, tmp_path / "facts.toml")
    assert caught.value.where == f"{tmp_path / 'facts.toml'}.te"


@pytest.mark.parametrize(
    ("version", "expected"), [("1.8.0+37280ec", ["1.9.0"]), ("1.9.0", []), ("./TransformerEngine", [])]
)
def test_newer_releases_follow_a_version(version: str, expected: list[str]) -> None:
    assert newer(version, ["1.7.0", "1.8.0", "1.9.0"]) == expected
