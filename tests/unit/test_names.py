"""One noun, one class: no two public classes of the project share a name."""

from __future__ import annotations

import ast
from collections import defaultdict

from matrix.provision.project import ROOT


def test_no_two_public_classes_share_a_name() -> None:
    where: dict[str, list[str]] = defaultdict(list)
    for path in [*ROOT.glob("matrix/**/*.py"), *ROOT.glob("tests/failures/*/*.py"), ROOT / "toxfile.py"]:
        if path.name.startswith("test_"):
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where[node.name].append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in where.items() if len(paths) > 1} == {}
