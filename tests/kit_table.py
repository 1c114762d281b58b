"""The table of the kit's helpers, from their docstrings: those that at least two entries import, and how many do.

    python -m tests.kit_table

prints the rows; `tox run -e docs` has them as a page.
"""

from __future__ import annotations

import ast
from collections import Counter

from matrix.ground.catalog.folders import entries
from matrix.prove.provision.project import ROOT

KIT = ROOT / "matrix" / "kit"
LEAST = 2  # entries that use a helper: the others are of one failure


def used() -> Counter[tuple[str, str]]:
    """Return the number of entries that use each name of a module of the kit: (module, name)."""
    counts: Counter[tuple[str, str]] = Counter()
    for entry in entries():
        names: set[tuple[str, str]] = set()
        for path in entry.parent.glob("*.py"):
            tree = ast.parse(path.read_text("utf-8"))
            modules = set()
            for node in ast.walk(tree):
                if isinstance(node, ast.ImportFrom) and node.module == "matrix.kit":
                    modules |= {alias.name for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("matrix.kit."):
                    names |= {(str(node.module).rpartition(".")[2], alias.name) for alias in node.names}
            for node in ast.walk(tree):
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
                    names.add((node.value.id, node.attr))
        counts.update(names)
    return counts


def meaning(module: str, name: str) -> str:
    """Return the first sentence of the docstring of a function or class of the kit, "" for what has none."""
    for node in ast.parse((KIT / f"{module}.py").read_text("utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name:
            return " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split()).partition(". ")[0].rstrip(".")
    return ""


def rows() -> list[str]:
    """Return the rows of the table, by module, the most used helpers first."""
    counts = {key: count for key, count in used().items() if count >= LEAST and meaning(*key)}
    ordered = sorted(counts, key=lambda key: (key[0], -counts[key], key[1]))
    cells = [
        (f"`{module}.{name}`", meaning(module, name).replace("|", "\\|"), counts[module, name])
        for module, name in ordered
    ]
    return [f"| {helper} | {text} | {count} |" for helper, text, count in cells]


if __name__ == "__main__":
    print(*rows(), sep="\n")
