"""Commands that take long, in a folder of hostile modules: none of these is executed."""

from __future__ import annotations

from pathlib import Path

import pytest

from matrix.prove.provision.indexes import site_environment
from tests import hostile_modules

MADE = (0, ("run", "--no-cache", "--within", hostile_modules.WITHIN, "--out", "{out}"))


@pytest.mark.parametrize(("status", "words"), [MADE, *hostile_modules.LONG])
def test_long_command_executes_nothing_of_its_folder(status: int, words: tuple[str, ...], tmp_path: Path) -> None:
    """With `run`, tox makes an environment, and pytest runs all cases there."""
    folder = hostile_modules.make(tmp_path / "folder", tmp_path / "executed")
    done = hostile_modules.start(words, folder, **site_environment())
    assert not (tmp_path / "executed").exists(), (tmp_path / "executed").read_text()
    assert (done.returncode, done.stderr.count("Traceback")) == (status, 0), done.stdout + done.stderr
