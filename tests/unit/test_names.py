"""One noun, one class; test names of at most eight words."""

from __future__ import annotations

import ast
from collections import defaultdict

from matrix.provision.project import ROOT

WORDS = 8  # docs/style.md


def test_no_two_public_classes_share_a_name() -> None:
    where: dict[str, list[str]] = defaultdict(list)
    for path in [*ROOT.glob("matrix/**/*.py"), *ROOT.glob("tests/failures/*/*.py"), ROOT / "toxfile.py"]:
        if path.name.startswith("test_"):
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where[node.name].append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in where.items() if len(paths) > 1} == {}


def test_test_names_have_at_most_eight_words() -> None:
    names = [
        node.name
        for path in ROOT.glob("tests/**/*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]
    assert names
    assert [name for name in names if len(name.split("_")) - 1 > WORDS] == []
