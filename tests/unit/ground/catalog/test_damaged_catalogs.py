"""Damaged catalogs: an error with a file, or a catalog whose night can be planned and run; never a traceback."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.folders import FAILURES
from matrix.ground.catalog.loading import FACTS, load
from matrix.ground.catalog.model import Catalog
from matrix.ground.errors import MatrixError
from matrix.prove.execution.reproduction import CaseContext, Reproduction
from matrix.prove.planning.night import night, pairwise
from tests.profiles import tries
from tests.unit.catalogs import copy_of_facts, plan_entry

# What replaces a value: other types, numbers beyond every limit, empty and unprintable texts, no TOML at all.
ODD: Final = (
    "true", "0", "-1", "7", "1.5", "nan", "inf", "9" * 30, '""', '"x"', '"a/b c"', '"../../x"', '">=9"', '"<"', '"("',
    '"\\u001b[31m"', '"\\u0000"', '"(a+)+b"', "[]", "[1]", '["x"]', "[[]]", "{}", "{ x = 1 }", "1979-05-27", "07:32:00",
    "[" * 5000 + "]" * 5000, "", '"', "\ud800", "x" * 100_000,
)  # fmt: skip
VALUE: Final = re.compile(r"\"[^\"\n]*\"|(?<= )-?\d[\d.]*\b|\b(?:true|false)\b|\[[^\[\]\n]*\]|\{[^{}\n]*\}")
NAME: Final = re.compile(r"\b[a-z_]+(?= = )|(?<=\[\[)[a-z_.]+|(?<=^\[)[a-z_.]+")
FILES: Final = tuple(
    f"{folder}/{path.relative_to(root)}"
    for folder, root in (("facts", FACTS), ("failures", FAILURES))
    for path in sorted(root.glob("*.toml" if folder == "facts" else "*/failure.toml"))
)


@dataclass(frozen=True)
class Damage:
    """A change of the `place`-th line, value or name (modulo their number) of a file."""

    file: str
    kind: str
    place: int
    odd: str

    def of(self, text: str) -> str:
        """Return the damaged text."""
        if self.kind in {"line", "double", "cut"}:
            lines = text.splitlines(keepends=True)
            at = self.place % len(lines)
            rest = {"line": lines[at + 1 :], "double": lines[at:], "cut": []}[self.kind]
            return "".join([*lines[: at + (self.kind == "double")], *rest])
        found = [*(VALUE if self.kind == "value" else NAME).finditer(text)]
        if not found:
            return self.odd
        match = found[self.place % len(found)]
        return text[: match.start()] + self.odd + text[match.end() :]


DAMAGES: Final = st.builds(
    Damage,
    st.sampled_from(FILES),
    st.sampled_from(["value", "value", "value", "value", "name", "line", "double", "cut"]),
    st.integers(0, 5000),
    st.sampled_from(ODD),
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the catalog."""
    folder = tmp_path_factory.mktemp("catalog")
    copy_of_facts(folder)
    shutil.copytree(FAILURES, folder / "failures", ignore=shutil.ignore_patterns("__pycache__", "examples"))
    return folder


def plan_and_describe(known: Catalog) -> None:
    """Plan a night, write each case as the plan does, and make the job of its ranks."""
    for item in night(known, pairwise):
        json.dumps(plan_entry(item))
        entry = known.failure(item.failure)
        if item.reproducible and item.level is not Level.CONTRACT:
            reproduction = Reproduction(item, entry, known.failures, CaseContext(), None, None, None)  # type: ignore[arg-type]
            assert reproduction.job.world_size > 0


@tries(20)
@given(damage=DAMAGES)
def test_damaged_catalog_is_refused_or_planned(damage: Damage, whole: Path) -> None:
    path = whole / damage.file
    content = path.read_bytes()
    try:
        path.write_text(damage.of(content.decode()), encoding="utf-8", errors="surrogatepass")
        known = load(whole / "facts", whole / "failures")
    except MatrixError:
        return
    finally:
        path.write_bytes(content)
    changed = [entry for entry in known.failures if entry.folder == path.parent]
    kept = [*changed]
    for entry in kept:  # with those that mask it, and those that mask them
        masks = {masked.by for masked in entry.masked}
        kept += [other for other in known.failures if other.id in masks and other not in kept]
    plan_and_describe(replace(known, failures=tuple(kept)) if changed else known)
