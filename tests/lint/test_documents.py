"""Links between the documents."""

from __future__ import annotations

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
    found = re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)", document.read_text())
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


def test_table_of_the_kit_is_current() -> None:
    assert "\n".join(["|---|---|---|", *kit_table.rows(), ""]) in (ROOT / "CONTRIBUTING.md").read_text()
