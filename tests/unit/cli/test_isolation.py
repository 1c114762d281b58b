"""Every command in a folder of hostile modules, settings and hooks: none of them is executed."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from matrix.cli import COMMANDS
from matrix.cli.main import parser
from tests import hostile_modules


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("hostile")
    return hostile_modules.make(root / "folder", root / "executed")


@pytest.fixture(autouse=True)
def executed(folder: Path) -> Path:
    """Return the file in which what is executed leaves its name, absent now."""
    path = folder.with_name("executed")
    path.unlink(missing_ok=True)
    return path


def leaves(arguments: argparse.ArgumentParser, *words: str) -> Iterator[tuple[str, ...]]:
    """Yield the commands below a parser: those without commands of their own."""
    nested = [action for action in arguments._actions if isinstance(action, argparse._SubParsersAction)]
    for action in nested:
        for name, below in action.choices.items():
            yield from leaves(below, *words, name)
    if not nested:
        yield words


@pytest.mark.parametrize(("status", "words"), hostile_modules.QUICK)
def test_command_executes_nothing_of_its_folder(
    status: int, words: tuple[str, ...], folder: Path, executed: Path
) -> None:
    done = hostile_modules.start(words, folder, **hostile_modules.OFFLINE)
    assert not executed.exists(), executed.read_text()
    assert done.returncode == status, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert "uv.toml" not in done.stdout + done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_hostile_folder_is_tried_by_each_command(command: str) -> None:
    (action,) = (one for one in parser([command])._actions if isinstance(one, argparse._SubParsersAction))
    lines = [*hostile_modules.QUICK, *hostile_modules.LONG]
    for leaf in leaves(action.choices[command], command):
        assert any(words[: len(leaf)] == leaf for _, words in lines), f"no line for {leaf} in tests/hostile_modules.py"


@pytest.mark.parametrize("name", ["json", "tox", "matrix"])
def test_hostile_folder_is_hostile(name: str, folder: Path, executed: Path) -> None:
    """Without isolation its modules run: the tests above can fail. Python 3.13 runs one before the command."""
    subprocess.run([sys.executable, "-c", f"import {name}"], cwd=folder, check=False, stderr=subprocess.DEVNULL)
    assert {name, "linecache"} & {*executed.read_text().splitlines()}
