from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from matrix.ground.errors import MatrixError
from matrix.prove.provision.downloads import IndexFile
from matrix.prove.provision.resolution import Resolution, index_files, listed_releases, resolve
from matrix.read.commands import CommandResult


def answering(result: CommandResult, calls: list[list[str]] | None = None) -> object:
    def run(
        command: Sequence[str], *, environment: Mapping[str, str] | None = None, seconds: float | None = None
    ) -> CommandResult:
        if calls is not None:
            calls.append([*command, Path(command[-1]).read_text()])
        return result

    return run


ENVIRON = {"UV": "/bin/uv", "HOME": "/nonexistent"}


def test_pins_of_all_packages_are_returned() -> None:
    calls: list[list[str]] = []
    run = answering(CommandResult(0, "torch==2.9.1\n# a comment\nnumpy==2.5.5\n"), calls)
    found = resolve(["torch==2.9.1", "numpy"], "3.12", run=run, environ=ENVIRON)  # type: ignore[arg-type]
    assert found == Resolution(("torch==2.9.1", "numpy==2.5.5"))
    (command,) = calls
    assert "--no-build" in command
    assert command[-1] == "torch==2.9.1\nnumpy\n"


@pytest.mark.parametrize(
    ("printed", "decided"),
    [
        ("error: No solution found: torch==2.9.1 and numpy<2 are incompatible", True),
        ("error: Failed to fetch: `https://index.example/simple/torch/`", False),
        ("error: cause: error sending request for url", False),
        ("hint: Wheels are required for `x` because building from source is disabled for all packages", False),
    ],
)
def test_problem_without_an_answer_decides_nothing(printed: str, decided: bool) -> None:
    run = answering(CommandResult(1, "", printed))
    found = resolve(["torch"], "3.12", run=run, environ=ENVIRON)  # type: ignore[arg-type]
    assert found.decided is decided
    assert not found.pins
    assert found.problem


@pytest.mark.parametrize(
    ("result", "listed"),
    [
        (
            CommandResult(0, "numpy (1.26.4)\nAvailable versions: 1.26.4, 1.26.3\n  INSTALLED: 2.0\n"),
            ("1.26.4", "1.26.3"),
        ),
        (CommandResult(1, "ERROR: No matching distribution found for numpi\n"), ()),
        (CommandResult(127, "no such command"), ()),
    ],
)
def test_releases_of_the_index_are_listed(result: CommandResult, listed: tuple[str, ...]) -> None:
    asked = []

    def run(
        command: Sequence[str], *, environment: Mapping[str, str] | None = None, seconds: float | None = None
    ) -> CommandResult:
        asked.append((command[1:], (environment or {}).get("PIP_INDEX_URL")))
        return result

    environ = {**ENVIRON, "UV_DEFAULT_INDEX": "https://index.example/simple"}
    assert listed_releases("numpy", "3.10", run, environ) == listed
    ((command, index),) = asked
    line = "tool run pip index versions numpy --python-version 3.10 --only-binary :all:"
    assert (" ".join(command), index) == (line, "https://index.example/simple")


LOCK = """
[[packages]]
name = "a"
wheels = [{ url = "https://index.example/a-1%2Bcpu-py3-none-any.whl", size = 7, hashes = { sha256 = "aa" } }]
[[packages]]
name = "b"
sdist = { path = "/links/b-2.tar.gz", hashes = { sha256 = "bb" } }
"""


def test_files_have_name_place_size_and_hash() -> None:
    calls: list[list[str]] = []
    run = answering(CommandResult(0, LOCK), calls)
    files = index_files(["a", "b"], "3.12", ["--no-deps"], run=run, environ=ENVIRON)  # type: ignore[arg-type]
    assert files == (
        IndexFile("a-1+cpu-py3-none-any.whl", "https://index.example/a-1%2Bcpu-py3-none-any.whl", 7, "aa"),
        IndexFile("b-2.tar.gz", "file:///links/b-2.tar.gz", 0, "bb"),
    )
    assert "--no-deps" in calls[0]


def test_files_that_do_not_exist_are_an_error() -> None:
    run = answering(CommandResult(1, "", "error: No solution found"))
    with pytest.raises(MatrixError, match="the index has no such files"):
        index_files(["a"], "3.12", run=run, environ=ENVIRON)  # type: ignore[arg-type]
