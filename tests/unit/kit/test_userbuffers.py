"""A function of upstream is extracted from a file whose module can't be imported (matrix/kit/userbuffers.py)."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

import pytest

from matrix.kit.userbuffers import function_of

FILE = """
import nowhere.to.be.found
import json as notation, os
from nowhere import get_args

def other():
    return get_args()

def start():
    if get_args() is None:
        raise ValueError("no arguments")
    return notation.dumps(get_args())
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of a package whose modules must not be imported."""
    folder = tmp_path / "upstream_of_test"
    (folder / "training").mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "training" / "initialize.py").write_text(FILE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return folder.name


def test_the_function_runs_with_its_imports(package: str) -> None:
    start = function_of(package, ("training/initialize.py",), "start", {"get_args": lambda: [1]})
    assert start() == "[1]"
    assert f"{package}.training" not in sys.modules


def test_tracebacks_show_upstream_s_lines(package: str) -> None:
    start = function_of(package, ("training/initialize.py",), "start", {"get_args": lambda: None})
    with pytest.raises(ValueError, match="no arguments") as caught:
        start()
    frame = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (Path(frame.filename).name, frame.lineno, frame.name) == ("initialize.py", 11, "start")


def test_a_missing_file_or_function_raises(package: str) -> None:
    with pytest.raises(FileNotFoundError, match="elsewhere"):
        function_of(package, ("elsewhere.py",), "start", {})
    with pytest.raises(LookupError, match="stop"):
        function_of(package, ("training/initialize.py",), "stop", {})
