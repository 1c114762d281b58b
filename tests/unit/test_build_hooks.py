"""What builds the distribution and the documents: links of the README, of a page, and rows of the reference."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from matrix.prove.provision.project import ROOT


def module(monkeypatch: pytest.MonkeyPatch, *imported: str, **names: type) -> Callable[[str], dict[str, Any]]:
    """Return a function that runs a file of the checkout beside stand-ins of the program that imports it."""
    for name in imported:
        stand_in = ModuleType(name)
        for attribute, value in names.items():
            setattr(stand_in, attribute, value)
        monkeypatch.setitem(sys.modules, name, stand_in)
    return lambda path: runpy.run_path(str(ROOT / path))


@pytest.mark.parametrize(
    ("written", "built"),
    [
        ("[a](docs/a.md)", "[a](URL/blob/main/docs/a.md)"),
        ("[a](https://b.example/a)", "[a](https://b.example/a)"),
        ("[a](#here)", "[a](#here)"),
        ('<img src="docs/a.svg">', '<img src="URL/raw/main/docs/a.svg">'),
        ('<source srcset="docs/a.svg">', '<source srcset="URL/raw/main/docs/a.svg">'),
    ],
)
def test_readme_of_a_package_has_whole_links(monkeypatch: pytest.MonkeyPatch, written: str, built: str) -> None:
    run = module(monkeypatch, "hatchling.metadata.plugin.interface", MetadataHookInterface=object)
    assert run("hatch_build.py")["absolute"](written, "URL") == built


@pytest.mark.parametrize(
    ("written", "built"),
    [
        ("[a](../README.md)", "[a](https://github.com/me/megatrix/blob/main/README.md)"),
        ("[a](schema/)", "[a](https://github.com/me/megatrix/blob/main/docs/schema)"),
        ("[a](check.md)", "[a](check.md)"),
    ],
)
def test_pages_link_files_of_the_repository(written: str, built: str) -> None:
    page = runpy.run_path(str(ROOT / "docs/site_links.py"))["on_page_markdown"]
    assert page(written, config={"extra": {"owner": "me"}}) == built


def test_reference_has_every_command_and_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pages as mkdocs gets them; a nested key is named with those above it."""
    monkeypatch.setenv("COLUMNS", "80")
    run = module(monkeypatch, "mkdocs.structure.files", File=SimpleNamespace, Files=list)
    pages = run("docs/reference_pages.py")
    assert "## megatrix check" in pages["commands"]()
    assert "--allow-unknown" in pages["commands"]()
    entry = pages["entry"](ROOT / "docs/schema/toml/failure.json")
    assert "## Case" in entry
    assert "`deadline`" in entry
    assert "`card` are the bytes of a GPU that a rank uses at most" in entry
    text = pages["schemas"](ROOT / "docs" / "schema")
    assert "| `items[].breaks` | boolean | the answer is breaks |" in text
