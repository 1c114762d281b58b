"""Deciding modules use no environment, disk, clock or chance. Processes and sockets: import-linter, pyproject.toml."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from matrix.prove.provision.project import ROOT

# Modules whose functions decide on values alone; those of show/ turn values into texts.
PURE: Final = (
    "matrix/ground/verdicts/*.py",
    "matrix/prove/planning/*.py",
    "matrix/ground/catalog/*.py",
    "matrix/show/*.py",
    "matrix/show/findings.py",
    "matrix/prove/bisection/joint.py",
    "matrix/prove/bisection/noise.py",
    "matrix/prove/bisection/odds.py",
    "matrix/prove/bisection/search.py",
    "matrix/ask/check/answer.py",
    "matrix/ask/check/remedies.py",
    "matrix/ask/check/rulings.py",
    "matrix/ask/check/user_stack.py",
    "matrix/ask/check/table.py",
    "matrix/ask/fit/*.py",
)
# The edges inside these folders, each with what it does there.
EDGES: Final = {
    "matrix/ground/catalog/folders.py": "finds the folders of failures",
    "matrix/ground/catalog/regular_file.py": "opens files",
    "matrix/ground/catalog/loading.py": "reads the catalog, and keeps it decoded in the cache",
    "matrix/show/document.py": "reads templates",
    "matrix/show/failure_page.py": "lists the examples of a failure, and runs the chart of its folder",
    "matrix/show/site.py": "writes the pages",
    "matrix/show/terminal.py": "reads the size and colours of the terminal",
}
CALLS: Final = frozenset({"open", "input", "exec", "eval", "__import__"})
# Methods of Path and functions of os that read or change the disk.
METHODS: Final = frozenset(
    """
    read_text read_bytes write_text write_bytes open touch mkdir rmdir unlink exists is_file is_dir is_symlink stat
    lstat iterdir glob rglob resolve samefile isfile isdir listdir scandir getmtime getsize expanduser cwd home getcwd
    """.split()  # noqa: SIM905
)
ATTRIBUTES: Final = frozenset(
    """
    os.environ os.getenv os.system os.popen os.kill os.fork os.walk os.open os.access os.cpu_count os.getpid os.uname
    time.time time.monotonic time.perf_counter time.sleep datetime.now date.today sys.argv sys.stdin platform.machine
    """.split()  # noqa: SIM905
)
# Commands that render their answer themselves; what its functions return, and those that look up something.
RENDERING: Final = ("contract", "fit", "match", "parity", "run")
PRINTED: Final = re.compile(r"\bPart\b|^str$|dict\[str, Any\]|Iterator\[str\]")
LOOKING: Final = {"_folder": "a path from the current folder", "command_line": "the name of the program"}
MODULES: Final = frozenset({"random", "secrets", "uuid", "getpass"})


def impurities(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each use of the environment, the disk, the clock or chance."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ATTRIBUTES:
            yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS:
            yield node.lineno, f"{node.func.id}()"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
            yield node.lineno, f".{node.func.attr}()"
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES | {"os", "time"}:
            # `from os import environ` would hide its uses from the above
            yield node.lineno, f"from {node.module}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = os.environ.get('A')", ["os.environ"]),
        ("from os import environ", ["from os"]),
        ("import os.path, random", ["random"]),
        ("def f(path):\n    return path.read_text()", [".read_text()"]),
        ("if Path(text).is_file(): pass", [".is_file()"]),
        ("open(path)", ["open()"]),
        ("now = time.time", ["time.time"]),
        ("re.compile('x').match(text); path.name; path.with_suffix('.x')", []),
        ("from datetime import datetime\nx = datetime.fromisoformat(text)", []),
    ],
)
def test_use_of_the_outside_is_found(text: str, expected: list[str]) -> None:
    assert [found for _, found in impurities(text)] == expected


@pytest.mark.parametrize("pattern", PURE)
def test_deciding_modules_use_values_alone(pattern: str) -> None:
    paths = sorted(ROOT.glob(pattern))
    assert paths
    used = [
        f"{name}:{line}: {text}"
        for path in paths
        if (name := str(path.relative_to(ROOT))) not in EDGES
        for line, text in impurities(path.read_text(encoding="utf-8"))
    ]
    assert used == []


@pytest.mark.parametrize("command", RENDERING)
def test_what_a_command_prints_comes_from_values(command: str) -> None:
    """The command reads and writes; the functions that render its answer get values, as those of show/."""
    tree = ast.parse((ROOT / f"matrix/cli/{command}.py").read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.returns]
    rendering = [node for node in functions if node.returns and PRINTED.search(ast.unparse(node.returns))]
    assert rendering
    used = {node.name: [text for _, text in impurities(ast.unparse(node))] for node in rendering}
    assert {name: texts for name, texts in used.items() if texts and name not in LOOKING} == {}


def test_edges_are_edges() -> None:
    pure = [name for name in EDGES if not [*impurities(Path(ROOT, name).read_text())]]
    assert pure == [], "these use values alone: remove them from EDGES"
