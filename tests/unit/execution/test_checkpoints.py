"""A checkpoint is written once, and a writer that fails leaves none."""

from __future__ import annotations

from pathlib import Path

import pytest

from matrix.execution import checkpoints
from matrix.verdicts.outcome import Outcome, OutcomeKind, Raised

PASSED = Outcome(OutcomeKind.PASSED)
RAISED = Outcome(OutcomeKind.RAISED, "rank 0 raised", 0, chain=(Raised("TypeError", "broke"),), evidence="broke")


class Writer:
    """A writer with these outcomes, one for each call."""

    def __init__(self, *outcomes: Outcome) -> None:
        self.outcomes = list(outcomes)

    def __call__(self, folder: Path) -> Outcome:
        assert list(folder.iterdir()) == []
        (folder / "weights").write_text("1", encoding="utf-8")
        return self.outcomes.pop(0)


def test_it_is_written_once(tmp_path: Path) -> None:
    write = Writer(PASSED)
    assert checkpoints.provide(tmp_path / "a", write) is None
    assert checkpoints.provide(tmp_path / "a", write) is None
    assert (tmp_path / "a" / "weights").read_text(encoding="utf-8") == "1"


def test_an_unfinished_one_is_written_again(tmp_path: Path) -> None:
    (tmp_path / "a.making" / "old").mkdir(parents=True)
    assert checkpoints.provide(tmp_path / "a", Writer(PASSED)) is None
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["weights"]


def test_a_failed_writer_shows_no_signature(tmp_path: Path) -> None:
    """Otherwise an error of the writer would count as the error of the reader."""
    missing = checkpoints.provide(tmp_path / "a", Writer(RAISED))
    assert missing == Outcome(OutcomeKind.EXITED, "the checkpoint was not written: raised: rank 0 raised")
    assert not (tmp_path / "a").exists()


def test_an_unavailable_writer_is_unavailable(tmp_path: Path) -> None:
    lack = Outcome(OutcomeKind.UNAVAILABLE, "no memory cgroup")
    assert checkpoints.provide(tmp_path / "a", Writer(lack)) == lack


def test_an_interrupted_writer_leaves_nothing(tmp_path: Path) -> None:
    def write(folder: Path) -> Outcome:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        checkpoints.provide(tmp_path / "a", write)
    assert checkpoints.provide(tmp_path / "a", Writer(PASSED)) is None
