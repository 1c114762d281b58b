"""Test names of at most eight words."""

from __future__ import annotations

import ast

from matrix.prove.provision.project import ROOT

WORDS = 8  # docs/style.md


def test_test_names_have_at_most_eight_words() -> None:
    names = [
        node.name
        for path in ROOT.glob("tests/**/*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]
    assert names
    assert [name for name in names if len(name.split("_")) - 1 > WORDS] == []
