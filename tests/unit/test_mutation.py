"""What tests/mutation.py makes of mutmut's output."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from tests import mutation
from tests.mutation import EQUIVALENT, ROOT, TARGETS, Mutant, changed_line, configuration, score, statuses, undecorated

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


def test_change_is_the_added_lines() -> None:
    assert changed_line(DIFF) == "return (1 - 2)"
    assert changed_line("") == ""


@pytest.mark.parametrize(
    ("survived", "equivalent", "percent"), [(0, 0, 100), (1, 0, 90), (1, 1, 100), (2, 1, 100 * 8 / 9), (10, 0, 0)]
)
def test_score_leaves_equivalent_mutants_out(survived: int, equivalent: int, percent: float) -> None:
    mutants = [Mutant(f"m{number}", "killed") for number in range(9 - survived)]
    mutants += [Mutant("timed", "timeout")][: 10 - survived]
    mutants += [Mutant(f"s{number}", "survived", f"line {number}") for number in range(survived)]
    reasons = {("a.py", f"line {number}"): "it changes nothing" for number in range(equivalent)}
    result = score("a.py", mutants, reasons)
    assert (result.mutants, result.equivalent, len(result.survivors)) == (10, equivalent, survived - equivalent)
    assert result.percent == pytest.approx(percent)
    assert ("BELOW" in mutation.row(result)) is (percent < 90)


@pytest.mark.parametrize("status", mutation.UNNOTICED)
def test_mutant_without_a_test_survives(status: str) -> None:
    assert score("a.py", [Mutant("m", status)], {}).percent == 0


def test_module_without_mutants_has_a_full_score() -> None:
    assert score("a.py", [], {}).percent == 100


def test_equivalence_holds_for_one_module_alone() -> None:
    assert score("a.py", [Mutant("m", "survived", "x = 1")], {("b.py", "x = 1"): "unused"}).percent == 0


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


def test_equivalent_mutants_have_a_reason() -> None:
    assert all(module in TARGETS and reason for (module, _), reason in EQUIVALENT.items())
