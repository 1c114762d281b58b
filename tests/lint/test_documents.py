"""Links between the documents."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from matrix.prove.provision.project import ROOT
from tests import kit_table

DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("reports/measurements/*.md")]


def anchors(document: Path) -> set[str]:
    """Return the anchors of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(document: Path) -> list[tuple[Path, str]]:
    """Return the targets of a document's links in the checkout: file and anchor."""
    found = re.findall(
        r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)", re.sub(r"(?ms)^```.*?^```", "", document.read_text())
    )
    return [(document.parent / path if path else document, anchor) for path, anchor in found]


def test_links_of_documents_lead_somewhere() -> None:
    assert [
        (str(document), str(path), anchor)
        for document in DOCUMENTS
        for path, anchor in links(document)
        if not path.exists() or (anchor and anchor not in anchors(path))
    ] == []


def test_every_document_is_listed() -> None:
    listed = (ROOT / "docs" / "README.md").read_text()
    assert [
        path.name for path in ROOT.glob("docs/*.md") if path.name != "README.md" and f"({path.name})" not in listed
    ] == []


def missing_parts(page: str) -> list[str]:
    """Return the paths below matrix/, and their functions and classes, that a page names and that do not exist."""
    missing = []
    for path, name in re.findall(r"`([a-z_]+/[a-z_/]+\.(?:py|toml))(?::([\w.]+))?`", page):
        file = next((root / path for root in (ROOT / "matrix", ROOT) if (root / path).is_file()), None)
        body = ast.parse(file.read_text()).body if file and name else []
        for part in filter(None, name.split(".")):
            body = next((item.body for item in body if getattr(item, "name", "") == part), None) or []
        missing += [] if file and (body or not name) else [f"{path}:{name}"]
    return missing


def test_architecture_names_what_exists_in_2000_words() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    assert missing_parts(page) == []
    assert missing_parts("`cli/check.py:gone`, `cli/gone.py`") == ["cli/check.py:gone", "cli/gone.py:"]
    assert len(page.split()) <= 2000


def test_table_of_the_kit_is_current() -> None:
    assert "\n".join(["|---|---|---|", *kit_table.rows(), ""]) in (ROOT / "docs" / "authoring.md").read_text()
