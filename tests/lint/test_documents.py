"""The documents: links lead somewhere, each page is listed, and each command that a page shows is one."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

from matrix.cli.main import parser, split_own_command
from matrix.prove.provision.project import ROOT

PLACES = ("*.md", "docs/**/*.md", "tests/failures/*/README.md", "matrix/kit/*/README.md", "reports/measurements/*.md")
DOCUMENTS = [page for place in PLACES for page in ROOT.glob(place)]


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


def commands(page: str) -> Iterator[list[str]]:
    """Yield the words of the `megatrix` command of each line of code of a page; it ends at a pipe or a comment."""
    for line in re.findall(r"^(?: {4}|\$ )(.*)$", page.replace("\\\n", ""), re.MULTILINE):
        if found := re.search(r"(?:(?<![\w/])megatrix|start\.py|-e megatrix --) (?=[a-z].*)(.*)", line):
            words = shlex.shlex(found[1], posix=True, punctuation_chars="|")
            words.whitespace_split = True
            yield [*takewhile(lambda word: word != "|", words)]


def test_commands_of_documents_are_ones() -> None:
    """Each is parsed; test_tutorial.py, test_readme.py and test_contributing.py run those of whole walks."""
    shown = [
        (page.name, words) for page in DOCUMENTS if "reports" not in page.parts for words in commands(page.read_text())
    ]
    assert len(shown) > 100
    for name, words in shown:
        given, _ = split_own_command(words)
        assert parser(given).parse_args(given), name


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
