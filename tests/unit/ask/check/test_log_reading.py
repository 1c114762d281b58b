"""Reading of a log file; its formats: tests/unit/cli/test_match.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from matrix.ask.check.log_reading import read_log
from matrix.ground.errors import MatrixError
from tests.founding import BEHIND_MPI


def test_log_is_compared_with_catalog_and_kinds(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(
        "ModuleNotFoundError: No module named 'apex'\nTypeError: initialize_ub() got an unexpected keyword "
        "argument 'tp_size'\n"
    )
    reading = read_log(str(log))
    assert [sighting.failure.id for sighting in reading.known] == [BEHIND_MPI]
    assert [sighting.kind.id for sighting in reading.kinds] == ["module-missing"]


def test_missing_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match="the log can't be read"):
        read_log(str(tmp_path / "none"))


def test_log_without_a_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unset variable of a shell names no log, and not those of the current folder."""
    (tmp_path / "train.log").write_text("x")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MatrixError, match="a log without a name"):
        read_log("")
