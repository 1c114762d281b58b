"""The content of a case: everything that its verdict depends on makes another key, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from matrix.catalog.failure import Expectation, Level
from matrix.execution import cache_key as content
from matrix.execution.cache_key import SOURCES, case_content, content_key
from matrix.provision.host import Host
from matrix.provision.installed import Environment
from matrix.provision.project import ROOT
from tests.unit.catalogs import catalog, failure, planned

CASE = planned(catalog(failure("dcp-assertion")))
SURROUNDINGS: dict[str, Any] = {
    "base": {"python": "3.10.13", "packages": {"torch": "2.4.0", "numpy": "1.26.4"}},
    "overlays": ["0a1b"],
    "host": {"machine": "x86_64"},
}
KEY = content_key(CASE, **SURROUNDINGS)


def test_the_key_is_a_hash_and_does_not_depend_on_the_order_of_packages() -> None:
    turned = {**SURROUNDINGS, "base": {"packages": {"numpy": "1.26.4", "torch": "2.4.0"}, "python": "3.10.13"}}
    assert content_key(CASE, **turned) == KEY
    assert len(KEY) == 64


def test_why_a_case_is_planned_does_not_matter() -> None:
    assert content_key(replace(CASE, why=("by hand",), notes=("twin",)), **SURROUNDINGS) == KEY


@pytest.mark.parametrize(
    "change",
    [
        {"case": "pp2"},
        {"failure": "tp-overlap"},
        {"level": Level.GPU},
        {"expectation": Expectation.BROKEN},
        {"cell": replace(CASE.cell, mcore="0.9.0")},
    ],
    ids=str,
)
def test_another_case_has_another_key(change: Any) -> None:
    assert content_key(replace(CASE, **change), **SURROUNDINGS) != KEY


@pytest.mark.parametrize(
    "change",
    [
        {"base": {"python": "3.10.14", "packages": {"torch": "2.4.0", "numpy": "1.26.4"}}},
        {"base": {"python": "3.10.13", "packages": {"torch": "2.4.1", "numpy": "1.26.4"}}},
        {"overlays": ["2c3d"]},
        {"overlays": []},
        {"host": {"machine": "aarch64"}},
    ],
    ids=str,
)
def test_other_surroundings_have_another_key(change: Any) -> None:
    assert content_key(CASE, **{**SURROUNDINGS, **change}) != KEY


@pytest.mark.parametrize(
    "file",
    ["matrix/verdicts/judge.py", "tests/failures/test_it.py", "matrix/catalog/facts/failures/dcp-assertion.toml"],
)
def test_another_source_has_another_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    """Neither the judge, nor a reproduction, nor the catalog's entry may change under a verdict that is kept."""
    monkeypatch.setattr(content.project, "folder", lambda: tmp_path)
    (tmp_path / file).parent.mkdir(parents=True)
    keys = []
    for text in ("one", "two"):
        (tmp_path / file).write_text(text)
        content.file_hash.cache_clear()
        content.sources_hash.cache_clear()
        keys.append(content_key(CASE, **SURROUNDINGS))
    content.sources_hash.cache_clear()
    assert keys[0] != keys[1]


@pytest.mark.parametrize("pattern", SOURCES)
def test_every_source_that_is_named_is_there(pattern: str) -> None:
    assert list(ROOT.glob(pattern)) != []


def test_the_content_depends_on_packages_overlays_and_what_the_host_has() -> None:
    base = Environment("3.10.13", {"torch": "2.4.0"})
    bare, server = Host(0, "none", "x86_64"), Host(8, "535.129.03", "x86_64")
    keys = {
        case_content(CASE, base, ["0a"], bare),
        case_content(CASE, base, ["0b"], bare),
        case_content(CASE, replace(base, packages={**base.packages, "psutil": "7"}), ["0a"], bare),
        case_content(replace(CASE, level=Level.GPU), base, ["0a"], bare),
        case_content(replace(CASE, level=Level.GPU), base, ["0a"], server),
    }
    assert len(keys) == 5
    assert case_content(CASE, base, ["0a"], server) == case_content(CASE, base, ["0a"], bare)
