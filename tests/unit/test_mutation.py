"""What tests/mutation.py makes of mutmut's output."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from tests import mutation
from tests.mutation import (
    EQUIVALENT,
    ROOT,
    TARGETS,
    Mutant,
    changed_lines,
    configuration,
    diffs,
    score,
    statuses,
    undecorated,
)

RESULTS = """
    matrix.a.x_f__mutmut_1: killed
    matrix.a.x_f__mutmut_2: no tests
    matrix.a.xǁAǁf__mutmut_1: timeout
some other line: here
"""
DIFF = """\
# matrix.a.x_f__mutmut_1: survived
--- matrix/a.py
+++ matrix/a.py
@@ -1,6 +1,6 @@
 def f() -> int:
-    return (1
-        + 2)
+    return (1
+        - 2)
"""


def test_results_are_names_and_statuses() -> None:
    assert [(mutant.name, mutant.status) for mutant in statuses(RESULTS)] == [
        ("matrix.a.x_f__mutmut_1", "killed"),
        ("matrix.a.x_f__mutmut_2", "no tests"),
        ("matrix.a.xǁAǁf__mutmut_1", "timeout"),
    ]


def test_diffs_are_read_by_mutant() -> None:
    shown = diffs(DIFF + DIFF.replace("f__mutmut_1", "f__mutmut_2").replace("- 2", "* 2"))
    assert {name: changed_lines(text) for name, text in shown.items()} == {
        "matrix.a.x_f__mutmut_1": "return (1 - 2)",
        "matrix.a.x_f__mutmut_2": "return (1 * 2)",
    }


def test_change_is_the_added_lines() -> None:
    assert changed_lines(DIFF) == "return (1 - 2)"
    assert changed_lines("") == ""


def test_change_without_new_lines_names_the_removed() -> None:
    diff = "--- a\n+++ b\n@@ -1,4 +1,3 @@\n f(\n     1,\n-    last=2,\n-)\n+)\n"
    assert changed_lines(diff) == "without last=2,"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("matrix.a.x_f__mutmut_1", "f: x = 1"),
        ("matrix.a.b.x__f__mutmut_12", "_f: x = 1"),
        ("matrix.a.xǁAǁf__mutmut_1", "A.f: x = 1"),
        ("matrix.a.xǁ_Aǁ__init____mutmut_1", "_A.__init__: x = 1"),
    ],
)
def test_text_of_a_mutant_names_the_function(name: str, text: str) -> None:
    """It is the same after a move of the module, or of the line."""
    assert Mutant(name, "survived", "x = 1").text == text


@pytest.mark.parametrize(
    ("survived", "equivalent", "percent"), [(0, 0, 100), (1, 0, 90), (1, 1, 100), (2, 1, 100 * 8 / 9), (10, 0, 0)]
)
def test_score_leaves_equivalent_mutants_out(survived: int, equivalent: int, percent: float) -> None:
    mutants = [Mutant(f"m{number}", "killed") for number in range(9 - survived)]
    mutants += [Mutant("timed", "timeout")][: 10 - survived]
    mutants += [Mutant(f"s{number}", "survived", f"line {number}") for number in range(survived)]
    mutants = [Mutant(f"m.x_{mutant.name}__mutmut_1", mutant.status, mutant.change) for mutant in mutants]
    result = score("a.py", mutants, [f"s{number}: line {number}" for number in range(equivalent)])
    assert (result.mutants, result.equivalent, len(result.survivors)) == (10, equivalent, survived - equivalent)
    assert (result.killed, result.stale) == (10 - survived, ())
    assert result.percent == pytest.approx(percent)
    assert mutation.row(result).split()[:5] == [
        "a.py",
        "10",
        *map(str, (10 - survived, equivalent, survived - equivalent)),
    ]
    assert ("BELOW" in mutation.row(result)) is (percent < 90)


@pytest.mark.parametrize("status", mutation.UNNOTICED)
def test_mutant_without_a_test_survives(status: str) -> None:
    assert score("a.py", [Mutant("m", status)], ()).percent == 0


def test_module_without_mutants_has_a_full_score() -> None:
    assert score("a.py", [], ()).percent == 100


def test_reason_without_an_unnoticed_mutant_is_stale() -> None:
    """Its line changed, or a test notices the mutant."""
    mutants = [Mutant("m.x_f__mutmut_1", "survived", "x = 1"), Mutant("m.x_f__mutmut_2", "killed")]
    assert score("a.py", mutants, ["f: x = 1", "f: x = 2"]).stale == ("f: x = 2",)


def test_copy_has_no_decorated_functions() -> None:
    source = """\
@cache
def parse(text: str) -> int:
    return int(text)


@lru_cache(maxsize=8)
def read(text: str) -> int:
    return int(text)


class Span:
    @property
    def size(self) -> int:
        return self.end - self.start

    @cached_property
    def names(self) -> Mapping[str, str]:
        return {}

    @classmethod
    def of(cls) -> Span:
        return cls()
"""
    copy = undecorated(source)
    assert "@cache\n" not in copy
    assert "@lru_cache" not in copy
    assert "    def size(self) -> int:\n        return self._size_()\n\n    def _size_(self) -> int:\n" in copy
    assert "    @cached_property\n    def names(self) -> Mapping[str, str]:\n        return self._names_()\n" in copy
    assert "    @classmethod\n    def of(cls)" in copy
    compile(copy, "copy", "exec")


@pytest.mark.parametrize("module", TARGETS)
def test_module_and_its_tests_exist(module: str) -> None:
    compile(undecorated((ROOT / module).read_text()), module, "exec")
    assert [test for test in TARGETS[module] if not (ROOT / test).exists()] == []
    table = tomllib.loads(configuration(module))["tool"]["mutmut"]
    assert (table["only_mutate"], table["pytest_add_cli_args_test_selection"]) == ([module], list(TARGETS[module]))
    assert all(Path(ROOT, name).exists() for name in mutation.COPIED)


def functions(node: ast.AST, prefix: str = "") -> Iterator[str]:
    """Yield the functions and the methods of a source, as EQUIVALENT names them."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from functions(child, f"{child.name}.")
        elif isinstance(child, ast.FunctionDef):
            yield prefix + child.name


@pytest.mark.parametrize("module", EQUIVALENT)
def test_equivalent_mutants_have_a_function_and_reason(module: str) -> None:
    assert module in TARGETS
    known = {*functions(ast.parse(undecorated((ROOT / module).read_text())))}
    assert [text for text in EQUIVALENT[module] if text.partition(": ")[0] not in known] == []
    assert all(EQUIVALENT[module].values())


@pytest.mark.parametrize(("killed", "status"), [((9, 9), 0), ((9, 8), 1), ((8, 9), 1)])
def test_module_below_the_goal_is_an_error(
    killed: tuple[int, int], status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After a line for each module; its survivors are printed on demand."""
    survivor = Mutant("matrix.a.x_f__mutmut_1", "survived", "x = 1")
    modules = list(TARGETS)[:2]
    results = {
        module: mutation.Score(module, 10, 0, (survivor,) * (10 - count), ("g: y = 2",))
        for module, count in zip(modules, killed, strict=True)
    }
    monkeypatch.setattr(mutation, "mutate", lambda module, folder, processes: results[module])
    assert mutation.main([*modules, "--show"]) == status
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["module", "mutants", "killed", "equivalent", "survived", "score"]
    assert [line.split()[:3] for line in lines if line.startswith("matrix/")] == [
        [module, "10", str(count)] for module, count in zip(modules, killed, strict=True)
    ]
    assert lines.count("    survived: f: x = 1") == 20 - sum(killed)
    assert lines.count("    stale in EQUIVALENT: g: y = 2") == 2
