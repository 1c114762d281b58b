"""The counts of tests/budgets.py, on snippets and small checkouts."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests import budgets

SOURCE = '''\
"""Docstring of
two lines."""

import os  # a comment
from matrix.ground import errors

# a comment

LIMIT = 3


@cache
def read(
    path: str,
) -> str:
    """A docstring."""
    if not path:
        raise MatrixError(
            "no path",
            got=path,
        )
    raise ValueError(
        path
    )


class Reader:
    size: int = 3
'''


def test_statements_are_lines_with_an_effect() -> None:
    """LIMIT, @cache, if, raise ValueError (3 lines), size."""
    assert budgets.statements(SOURCE) == 7


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", 0),
        ("x = 1; y = 2", 1),
        ("x = [\n    1,\n]", 3),
        ("def f(): return 1", 0),  # its signature
        ("def f():\n    return 1", 1),
        ("async def f(a,\n  b):\n    return 1", 1),
        ("class A:\n    '''Text.'''", 0),
        ("x = '''a\n\nb'''", 2),  # a blank line of a text does nothing
        ("raise errors.MatrixError(1)", 1),
    ],
)
def test_statements_of_snippets(text: str, lines: int) -> None:
    assert budgets.statements(text) == lines


def test_lines_count_imports_signatures_and_errors() -> None:
    text = "import json\n\n# why\ndef f() -> None:\n    '''Text.'''\n    raise MatrixError(\n        1\n    )\n"
    assert (budgets.statements(text, whole=True), budgets.statements(text)) == (5, 0)


@pytest.mark.parametrize(
    ("text", "modules"),
    [
        ("import json", set()),
        ("import matrix.prove.store.paths", {"matrix.prove.store.paths"}),
        (
            "from matrix.prove.store import paths, secrets as s",
            {"matrix.prove.store.paths", "matrix.prove.store.secrets"},
        ),
        ("from matrix.prove.store import VERSION", {"matrix.prove.store"}),
        ("from matrix.prove.store.paths import OUT, write", {"matrix.prove.store.paths"}),
        ("def f():\n    from matrix.prove.store.paths import OUT", {"matrix.prove.store.paths"}),
        ("if TYPE_CHECKING:\n    from matrix.prove.store.paths import OUT", {"matrix.prove.store.paths"}),
        ("from . import paths", set()),
    ],
)
def test_imports_count_everywhere(text: str, modules: set[str]) -> None:
    names = ["matrix.prove.store", "matrix.prove.store.paths", "matrix.prove.store.secrets"]
    assert budgets.imports(ast.parse(text), names) == modules


def test_local_names_are_counted_per_function() -> None:
    text = """
def outer(parameter):
    one = 1
    one = [each for each in parameter]
    with open(parameter) as file, suppress():
        (left, right), *rest = file
    self.attribute = one
    if (found := one):
        def inner():
            own = 1
        class Inside:
            other = 1
"""
    names = {function.name: budgets.local_names(function) for function in budgets.functions(ast.parse(text))}
    assert names == {"outer": {"one", "each", "file", "left", "right", "rest", "found"}, "inner": {"own"}}


def checkout(root: Path, **files: str) -> Path:
    """Write modules of matrix/, named with __ for a slash."""
    for name, text in files.items():
        path = root / "matrix" / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_counts_of_a_checkout(tmp_path: Path) -> None:
    long = "def long():\n" + "    pass\n" * budgets.MOST_LINES
    short = "def short():\n" + "    pass\n" * (budgets.MOST_LINES - 1)
    root = checkout(
        tmp_path,
        a__one=f"from matrix.b import one\nimport matrix.a.other\n{long}{short}",
        a__other="class Same: pass\nclass _Own: pass",
        b__one="class Same:\n    stack: Stack\nclass _Own: pass\nx = 1  # fmt: skip",
        b__two="def f():\n    found = 1\n    names = found\n    known_ = 1\n    release = 1",
    )
    tests = root / "tests" / "unit" / "a"
    tests.mkdir(parents=True)
    (tests / "test_one.py").touch()
    counted = budgets.counts(root)
    assert {name: count.value for name, count in counted.items()} == {
        "lines": 2 * budgets.MOST_LINES + 3 + 2 + 4 + 5,
        "statements": 2 * budgets.MOST_LINES - 1 + 2 + 4,
        "modules": 4,
        "fan-out": 2,
        "long functions": 1,
        "pronoun-like locals %": 50,
        "fmt: skip": 1,
        "shared class names": 1,
        "classes for a stack": 1,
        "modules without tests": 3,
    }
    assert counted["modules without tests"].items[0] == (1, "matrix/a/other.py: no tests/unit/a/test_other.py")
    assert counted["long functions"].items == [(budgets.MOST_LINES + 1, "matrix/a/one.py: long")]


def test_nothing_is_counted_where_nothing_is(tmp_path: Path) -> None:
    assert {count.value for count in budgets.counts(tmp_path).values()} == {0}


@pytest.mark.parametrize(("value", "expected"), [(2, False), (3, False), (3.1, True)])
def test_budget_allows_its_limit(value: float, expected: bool) -> None:
    assert budgets.over(budgets.Budget("x", 3, 0, ""), budgets.Count(value, [])) is expected


def test_count_over_its_budget_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert budgets.main(["--root", str(tmp_path)]) == 0
    assert "OVER" not in capsys.readouterr().out
    checkout(tmp_path, a="x = 1  # fmt: skip\n" * 99)
    (tmp_path / budgets.promised_tests(Path("matrix/a.py"))).parent.mkdir(parents=True)
    (tmp_path / budgets.promised_tests(Path("matrix/a.py"))).touch()
    assert budgets.main(["--root", str(tmp_path)]) == 1
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines() if "OVER" in line] == ["fmt:"]
    assert budgets.main(["fmt: skip", "--root", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "    99  matrix/a.py\n"


def test_every_budget_has_a_count(tmp_path: Path) -> None:
    assert [budget.name for budget in budgets.BUDGETS] == list(budgets.counts(tmp_path))
    assert all(budget.limit >= budget.goal and budget.why for budget in budgets.BUDGETS)
