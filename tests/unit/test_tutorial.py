"""The pages with sessions: each command is run in one folder, and prints what the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from matrix.prove.provision.project import ROOT

PAGES = ("tutorial.md", "private-catalog.md", "upgrade.md")
SKIPPED = "..."


def steps(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield each command of the page, with the lines that it shows."""
    for block in re.findall(r"^```console\n(.*?)^```$", page.read_text("utf-8"), re.DOTALL | re.MULTILINE):
        for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *lines = step.splitlines()
            typed = [line.removeprefix("> ") for line in lines if line.startswith(">")]
            yield "\n".join([command, *typed]), [line for line in lines if not line.startswith(">")]


@pytest.mark.parametrize("page", PAGES)
def test_page_shows_what_its_commands_print(page: str, tmp_path: Path) -> None:
    run_page(ROOT / "docs" / page, tmp_path)


def run_page(page: Path, folder: Path) -> None:
    """Run each command of a page in a folder, and compare what it prints with the page."""
    megatrix = f'megatrix() {{ "{sys.executable}" -m matrix "$@"; }}\n'
    environment = {**os.environ, "COLUMNS": "100", "PYTHONPATH": str(ROOT), "MEGATRIX_OUT": str(folder / "out")}
    for command, lines in steps(page):
        result = subprocess.run(
            ["bash", "-c", megatrix + command],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert shows(result.stdout, lines), (command, result.stdout[:2000], result.stderr[-500:])


def shows(printed: str, lines: list[str]) -> bool:
    """Return whether the lines are those printed; SKIPPED stands for any number of them, or for the end of one."""
    parts = [
        "(?:.*\n)*?"
        if line == SKIPPED
        else re.escape(line.removesuffix(SKIPPED)) + ".*" * line.endswith(SKIPPED) + "\n"
        for line in lines
    ]
    return re.fullmatch("".join(parts), printed) is not None


def test_changed_line_of_a_tutorial_is_found() -> None:
    assert shows("a\nb\nc\n", ["a", SKIPPED])
    assert shows("a\nb\nc\n", ["a", "b", "c"])
    assert shows("a\nb 1 s\n", ["a", "b ..."])
    assert not shows("a\nb\nc\n", ["a", "c"])
    assert not shows("a\nb\n", ["a", "c", SKIPPED])
