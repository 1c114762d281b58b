"""Count what makes the code wide, and fail where a count is over its budget.

    python -m tests.budgets               the counts of matrix/, with their budgets (part of `tox run -e lint`)
    python -m tests.budgets fan-out       what is counted, the largest first
    python -m tests.budgets --root DIR    the counts of another checkout

A limit above its goal is a ratchet: it is lowered with each change that allows it. One that is raised has a row in
docs/decisions.md, with the feature and who uses it.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
MOST_LINES: Final = 45  # of a function, from `def` to its last line


@dataclass(frozen=True)
class Budget:
    """The limit of one count; `goal` is where the limit is going, `why` what the count shows."""

    name: str
    limit: float
    goal: float
    why: str


BUDGETS: Final = (
    Budget("lines", 42_280, 36_000, "without blanks, comments and docstrings; all of it is read"),
    Budget("statements", 30_985, 26_500, "those lines without imports, signatures and errors: what the code does"),
    Budget("modules", 273, 269, "each is a name that a reader must know"),
    Budget("fan-out", 20, 20, "modules of matrix that one module imports: what must be known to change it"),
    Budget("long functions", 0, 0, f"functions over {MOST_LINES} lines"),
    Budget("pronoun-like locals %", 3, 3, "a local that names nothing has to be looked up at every use"),
    Budget("fmt: skip", 0, 0, "the formatter decides the form of code"),
    Budget("shared class names", 0, 0, "one noun, one class: public classes of matrix/, tests/failures/, toxfile.py"),
    Budget(
        "classes for a stack", 6, 6, "one value for what is installed: public classes that map components to versions"
    ),
    Budget("modules without tests", 0, 0, "docs/architecture.md: a module's are tests/unit/LAYER/test_MODULE.py"),
)
# The annotations of a field that holds a stack, or states one by component. A class that holds a Cell is not counted.
STACK_FIELDS: Final = ("Stack", "Mapping[str, Value]", "Mapping[str, VersionText]", "tuple[Statement, ...]")
# Words that stand for a noun and name nothing themselves.
WORDS: Final = """
after all another any asked before both brought chosen each every first former found given held here its kept known last
latter left less made meant more named next none now one ones only other others own place places read rest said same
second seen shown some stated such taken that then there these thing things this those wanted what which who written
"""
PRONOUNS: Final = frozenset(WORDS.split())
# Modules without a test file of their own, each with the reason.
UNTESTED: Final = {
    "matrix/__main__.py": "Ctrl-C before one call, of matrix/cli/main.py: tests/unit/cli/test_main.py",
    **dict.fromkeys(
        [f"matrix/kit/parity/{name}.py" for name in ("layout_step", "local_layers", "te_fp8", "te_kernels")],
        "all of it needs torch and megatron-core: tests/real/test_parity.py",
    ),
}


@dataclass(frozen=True)
class Module:
    """One source file; `name` is dotted, `path` relative to the checkout."""

    name: str
    path: Path
    text: str
    tree: ast.Module


@dataclass(frozen=True)
class Count:
    """`value` is held against the budget; `items` are what was counted: a number and a text."""

    value: float
    items: Sequence[tuple[float, str]]


def read_modules(root: Path, pattern: str) -> list[Module]:
    """Return the modules of a checkout that a glob pattern matches, sorted by path."""
    modules = []
    for path in sorted(root.glob(pattern)):
        text, relative = path.read_text(encoding="utf-8"), path.relative_to(root)
        name = ".".join(relative.with_suffix("").parts).removesuffix(".__init__")
        modules.append(Module(name, relative, text, ast.parse(text)))
    return modules


def statements(text: str, *, whole: bool = False) -> int:
    """Return the lines of a source that do something; with `whole` those of imports, signatures and errors as well.

    Left out are blank lines, comments, docstrings, imports, the signatures of classes and functions, and `raise
    MatrixError(...)`: an error message with four parts takes five lines and nobody should save them.
    """
    lines = [bool(line.strip()) and not line.strip().startswith("#") for line in text.splitlines()]
    for node in ast.walk(ast.parse(text)):
        for first, last in _docstring(node) if whole else _without_effect(node):
            lines[first - 1 : last] = [False] * (last - first + 1)
    return sum(lines)


def _docstring(node: ast.AST) -> Iterator[tuple[int, int]]:
    """Yield the first and last line of a node's docstring."""
    if (
        isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and ast.get_docstring(node, clean=False) is not None
    ):
        yield node.body[0].lineno, node.body[0].end_lineno or 0


def _without_effect(node: ast.AST) -> Iterator[tuple[int, int]]:
    """Yield the first and last lines of a node's imports, docstring, signature, or error."""
    yield from _docstring(node)
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield node.lineno, max(node.lineno, node.body[0].lineno - 1)
    elif isinstance(node, ast.Import | ast.ImportFrom) or (
        isinstance(node, ast.Raise)
        and isinstance(node.exc, ast.Call)
        and isinstance(node.exc.func, ast.Name)
        and node.exc.func.id == "MatrixError"
    ):
        yield node.lineno, node.end_lineno or 0


def imports(tree: ast.AST, names: Iterable[str]) -> set[str]:
    """Return the modules among `names` that a source imports: also in functions, also under TYPE_CHECKING.

    `from package import module` counts as the module; `from module import name` as the module that has the name.
    """
    known_names, imported = set(names), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            members = {f"{node.module}.{alias.name}" for alias in node.names}
            imported |= (members & known_names) or {node.module}
    return imported & known_names


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield all functions and methods, also nested ones."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def local_names(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Return the names that a function assigns, each once; without parameters and without those of nested functions."""
    names, nodes = set(), list[ast.AST](function.body)
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            nodes += ast.iter_child_nodes(node)
    return names


def _statements(modules: Sequence[Module], *, whole: bool = False) -> Count:
    items = [(statements(module.text, whole=whole), str(module.path)) for module in modules]
    return Count(sum(count for count, _ in items), items)


def _fan_out(modules: Sequence[Module]) -> Count:
    names = {module.name for module in modules}
    items = [(len(imports(module.tree, names) - {module.name}), str(module.path)) for module in modules]
    return Count(max((count for count, _ in items), default=0), items)


def _long_functions(modules: Sequence[Module]) -> Count:
    items = []
    for module in modules:
        for function in functions(module.tree):
            lines = (function.end_lineno or 0) - function.lineno + 1
            if lines > MOST_LINES:
                items.append((lines, f"{module.path}: {function.name}"))
    return Count(len(items), items)


def _pronouns(modules: Sequence[Module]) -> Count:
    locals_ = [
        (name, f"{module.path}: {name} in {function.name}")
        for module in modules
        for function in functions(module.tree)
        for name in local_names(function)
    ]
    items = [(1, text) for name, text in locals_ if name.rstrip("_") in PRONOUNS]
    return Count(round(100 * len(items) / max(1, len(locals_)), 1), items)


def _fmt_skips(modules: Sequence[Module]) -> Count:
    items = [(module.text.count("# fmt: skip"), str(module.path)) for module in modules]
    return Count(sum(count for count, _ in items), items)


def _shared(places: Iterable[tuple[str, str]]) -> Count:
    """Count the names that stand in more than one place."""
    by_name = defaultdict(list)
    for name, place in places:
        by_name[name].append(place)
    items = [(len(paths), f"{name}: {', '.join(paths)}") for name, paths in by_name.items() if len(paths) > 1]
    return Count(len(items), items)


def _shared_class_names(modules: Sequence[Module]) -> Count:
    return _shared(
        (node.name, str(module.path))
        for module in modules
        for node in module.tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )


def _stack_classes(modules: Sequence[Module]) -> Count:
    items = [
        (1.0, f"{module.path}: {node.name}")
        for module in modules
        for node in module.tree.body
        if isinstance(node, ast.ClassDef)
        for field in node.body
        if isinstance(field, ast.AnnAssign) and ast.unparse(field.annotation) in STACK_FIELDS
    ]
    return Count(len(items), items)


def promised_tests(path: Path) -> Path:
    """Return where docs/architecture.md promises the tests of a module: matrix/a/b.py -> tests/unit/a/test_b.py."""
    return Path("tests", "unit", *path.parts[1:-1], f"test_{path.name}")


def _untested(modules: Sequence[Module], root: Path) -> Count:
    items = [
        (1.0, f"{module.path}: no {promised_tests(module.path)}")
        for module in modules
        if module.path.stem != "__init__"
        and str(module.path) not in UNTESTED
        and not (root / promised_tests(module.path)).exists()
    ]
    return Count(len(items), items)


def counts(root: Path) -> dict[str, Count]:
    """Return every count of a checkout by the name of its budget."""
    modules = read_modules(root, "matrix/**/*.py")
    folders = [module for module in read_modules(root, "tests/failures/*/*.py") if "test_" not in module.path.stem]
    return {
        "lines": _statements(modules, whole=True),
        "statements": _statements(modules),
        "modules": Count(len(modules), [(1, str(module.path)) for module in modules]),
        "fan-out": _fan_out(modules),
        "long functions": _long_functions(modules),
        "pronoun-like locals %": _pronouns(modules),
        "fmt: skip": _fmt_skips(modules),
        "shared class names": _shared_class_names([*modules, *folders, *read_modules(root, "toxfile.py")]),
        "classes for a stack": _stack_classes(modules),
        "modules without tests": _untested(modules, root),
    }


def over(budget: Budget, count: Count) -> bool:
    """Return whether a count is over its budget."""
    return count.value > budget.limit


def table(counted: dict[str, Count]) -> str:
    """Return the counts as one table."""
    rows = [f"{'':24}{'count':>8}{'budget':>8}{'goal':>8}"]
    for budget in BUDGETS:
        count = counted[budget.name]
        mark = "  OVER" if over(budget, count) else ""
        rows.append(f"{budget.name:24}{count.value:8g}{budget.limit:8g}{budget.goal:8g}  {budget.why}{mark}")
    return "\n".join(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, or the items of one count; return 1 where a count is over its budget."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", nargs="?", choices=[budget.name for budget in BUDGETS], help="print what it counts")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout (default: this one)")
    options = parser.parse_args(arguments)
    counted = counts(options.root)
    if options.name:
        for number, text in sorted(counted[options.name].items, key=lambda item: (-item[0], item[1])):
            print(f"{number:6g}  {text}")
        return 0
    print(table(counted))
    return 1 if any(over(budget, counted[budget.name]) for budget in BUDGETS) else 0


if __name__ == "__main__":
    sys.exit(main())
