"""What a draft leaves to its author, as questions: one for each TODO of its failure.toml. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from matrix.catalog.loading import TODO

ACCEPT: Final = "="  # the answer that keeps the value of the draft, without its TODO
NO_SIDE: Final = "-"  # the answer for a side of a boundary that does not exist
# Of each side: what a rule or a workaround of the draft has that needs it.
_NEEDING: Final = {"breaks": '= "before"', "fixed": '= "fixed"'}
_TABLE: Final = re.compile(r"\[\[?([\w.]+)\]")
# `key = "TODO: hint"`, or `key = VALUE  # TODO: hint`, each in one line.
_WHOLE: Final = re.compile(rf'(?P<key>\w+) = "{TODO}(?:: (?P<hint>[^"\\]*))?"\s*(?:#.*)?')
_BESIDE: Final = re.compile(rf"(?P<key>\w+) = (?P<value>\S.*?)  # {TODO}(?:: (?P<hint>.*))?")


@dataclass(frozen=True)
class DraftQuestion:
    """A TODO: the number of its line, its table ("" at the top), its key, the draft's value ("" for none), a hint."""

    line: int
    table: str
    key: str
    value: str
    hint: str

    @property
    def name(self) -> str:
        """The table and the key."""
        return f"{self.table}.{self.key}" if self.table else self.key

    def __str__(self) -> str:
        return self.name + (f" ({self.hint})" if self.hint else "") + (f" [{self.value}]" if self.value else "")


def questions(text: str) -> Iterator[DraftQuestion]:
    """Yield a question for each key of a failure.toml whose value is a TODO, or has one beside it."""
    table = ""
    for number, line in enumerate(text.splitlines()):
        if header := _TABLE.match(line):
            table = header[1]
        elif todo := _WHOLE.fullmatch(line) or _BESIDE.fullmatch(line):
            parts = {"value": "", **todo.groupdict(default="")}
            yield DraftQuestion(number, table, parts["key"], parts["value"], parts["hint"])


def answered(text: str, question: DraftQuestion, answer: str) -> str:
    """Return the failure.toml with an answer; an empty one leaves the TODO.

    ACCEPT keeps a value of the draft, NO_SIDE removes a side of a boundary with what needs it. The items of a list are
    separated by ",".
    """
    lines = text.splitlines()
    if answer == NO_SIDE and question.table.startswith("boundary."):
        del lines[question.line]
        end = f"{{{question.table.removeprefix('boundary.')}.{question.key}}}"
        blocks = "\n".join(lines).split("\n\n")
        return "\n\n".join(block for block in blocks if _NEEDING[question.key] not in block and end not in block) + "\n"
    if value := plain_value(question, answer):
        lines[question.line] = f"{question.key} = {value}"
    return "\n".join(lines) + "\n"


def plain_value(question: DraftQuestion, answer: str) -> str:
    """Return an answer as TOML writes it, "" for none."""
    if not answer or answer == ACCEPT:
        return question.value if answer else ""
    if not question.value.startswith("["):
        return json.dumps(answer, ensure_ascii=False)
    return json.dumps([item.strip() for item in answer.split(",") if item.strip()], ensure_ascii=False)
