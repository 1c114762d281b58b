"""Answers and reports of preflights, and the facts beside their code."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from matrix.ground.errors import MatrixError
from matrix.kit.preflight import (
    Answer,
    Contracts,
    Error,
    Machine,
    Range,
    Report,
    Status,
    TrainingJob,
    newer,
    preflight_of,
    read_facts,
    status_of,
    unjudged,
)


@dataclass(frozen=True)
class Facts:
    """The facts of the test."""

    te: Range
    source: str


@pytest.mark.parametrize(("truth", "status"), [(True, Status.YES), (False, Status.NO), (None, Status.UNKNOWN)])
def test_a_missing_fact_is_unknown(truth: bool | None, status: Status) -> None:
    assert status_of(truth) is status


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (Error("TypeError", "no"), "TypeError: no"),
        (Error("", "no"), "no"),
        (Error("Crash", "too small", "SIGSEGV"), "SIGSEGV"),
    ],
)
def test_an_error_shows_its_effect(error: Error, text: str) -> None:
    assert str(error) == text
    assert Answer("q", Status.NO, "r", error).to_json()["breaks"] == text


def test_a_report_fails_by_an_error() -> None:
    warning = Answer("q", Status.NO, "r", warns="slow")
    assert not Report((warning,)).fails
    assert Report((warning, Answer("q", Status.NO, "r", Error("TypeError", "no")))).fails
    assert (unjudged("nothing is known").judged, unjudged("nothing is known").fails) == (False, False)


def test_the_function_of_a_folder_is_found(tmp_path: Path) -> None:
    code = "def examine(job, machine, contracts):\n    return unjudged('no')\n"
    (tmp_path / "preflight.py").write_text(f"from matrix.kit.preflight import unjudged\n\n{code}")
    report = preflight_of(tmp_path)(TrainingJob(), Machine(), Contracts)  # type: ignore[arg-type]  # not used
    assert report.answers[0].reason == "no"


def test_facts_are_read_with_their_ranges(tmp_path: Path) -> None:
    (tmp_path / "facts.toml").write_text('te = ">=1.9,<2"\nsource = "the test"\n')
    facts = read_facts(Facts, tmp_path / "facts.toml")
    assert ("1.10" in facts.te, "2.0" in facts.te) == (True, False)
    (tmp_path / "facts.toml").write_text('te = ">=1.9"\nsorce = "the test"\n')
    with pytest.raises(MatrixError, match="source"):
        read_facts(Facts, tmp_path / "facts.toml")


def test_error_of_a_fact_names_file_and_key(tmp_path: Path) -> None:
    (tmp_path / "facts.toml").write_text('te = 1\nsource = "the test"\n')
    with pytest.raises(MatrixError) as caught:
        read_facts(Facts, tmp_path / "facts.toml")
    assert caught.value.where == f"{tmp_path / 'facts.toml'}.te"


@pytest.mark.parametrize(("version", "expected"), [("0.9.0", ["0.10.0"]), ("0.10.0", []), ("some/folder", [])])
def test_newer_releases_follow_a_version(version: str, expected: list[str]) -> None:
    assert newer(version, ["0.8.0", "0.9.0", "0.10.0"]) == expected
