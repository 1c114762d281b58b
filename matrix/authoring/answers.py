"""Whether an entry can have an answer of its author: checked when it is given, before the next question. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from typing import Final, get_type_hints

from matrix.authoring.questions import NO_SIDE, DraftQuestion, plain_value, questions
from matrix.catalog.codec import decode
from matrix.catalog.failure import Case, ContractCall, Failure, Rule, Signature
from matrix.catalog.folders import ENTRY
from matrix.catalog.model import Catalog
from matrix.catalog.schema import toml_table
from matrix.catalog.stack import component_named, component_title, known_component
from matrix.catalog.versions import PARTS, Range, ReleaseBoundary
from matrix.errors import MatrixError, closest

_REFERENCE: Final = re.compile(r"[\w.-]+/[\w.-]+#\d+")
# The class of each table, whose type hints judge a value.
_TABLES: Final = {
    "": Failure,
    "signature": Signature,
    "case": Case,
    "contract": ContractCall,
    "affected": Rule,
    "works": Rule,
}


def check_answer(question: DraftQuestion, answer: str, catalog: Catalog) -> None:
    """Raise MatrixError for an answer of another form, and for a name that the catalog lacks."""
    text = plain_value(question, answer)
    if not text or (answer == NO_SIDE and question.table.startswith("boundary.")):
        return
    value = toml_table(f"answer = {text}", question.name)["answer"]
    words = value if isinstance(value, list) else [value]
    component = component_named(question.table.removeprefix("boundary.")) or component_named(question.key)
    if hint := get_type_hints(_TABLES[question.table]).get(question.key) if question.table in _TABLES else None:
        decode(hint, value, question.name)
    if question.name == "topic":
        _check_known(words, [topic.id for topic in catalog.topics], "topic", question.name)
    elif question.name == "axes":
        for word in words:
            known_component(word)
    elif question.name == "references":
        for word in words:
            if not _REFERENCE.fullmatch(word):
                expected = "OWNER/REPOSITORY#NUMBER: NVIDIA/Megatron-LM#1003"
                raise MatrixError("not a reference", where=question.name, got=word, expected=expected)
    elif component and question.table in ("affected", "works"):
        if value not in PARTS:
            Range.from_plain(value)
    elif component and (releases := catalog.releases(component)):
        what = f"release of {component_title(component)}"
        _check_known(words, [release.version for release in releases], what, question.name)


def check_boundary(text: str) -> None:
    """Raise MatrixError for a failure.toml whose boundary has all answers, and ends before it begins."""
    if not any(question.table.startswith("boundary.") for question in questions(text)):
        decode(dict[str, ReleaseBoundary], toml_table(text, ENTRY).get("boundary", {}), "boundary")


def check_script(text: str) -> None:
    """Raise MatrixError for lines that are no Python."""
    try:
        ast.parse(f"def reproduce(rank):\n{text}\n")
    except (SyntaxError, ValueError) as error:
        raise MatrixError("not Python", got=error, expected="the lines of a function", fix="enter them again") from None


def _check_known(words: Iterable[str], names: Iterable[str], what: str, where: str) -> None:
    names = list(names)
    for word in words:
        if word not in names:
            raise MatrixError(
                f"no such {what}", where=where, got=word, expected=f"a recorded {what}", fix=closest(word, names)
            )
