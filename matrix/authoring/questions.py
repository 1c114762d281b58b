"""What a draft leaves to its author, as questions: one for each TODO of its failure.toml. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from matrix.catalog.loading import TODO

ACCEPT: Final = "="  # the answer that keeps the value of the draft, without its TODO
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

    def __str__(self) -> str:
        name = f"{self.table}.{self.key}" if self.table else self.key
        return name + (f" ({self.hint})" if self.hint else "") + (f" [{self.value}]" if self.value else "")


def questions(text: str) -> Iterator[DraftQuestion]:
    """Yield a question for each key of a failure.toml whose value is a TODO, or has one beside it."""
    table = ""
    for number, line in enumerate(text.splitlines()):
        if header := _TABLE.match(line):
            table = header[1]
        elif todo := _WHOLE.fullmatch(line) or _BESIDE.fullmatch(line):
            parts = {"value": "", **todo.groupdict(default="")}
            yield DraftQuestion(number, table, parts["key"], parts["value"], parts["hint"])


def answered(text: str, answers: Mapping[DraftQuestion, str]) -> str:
    """Return the failure.toml with these answers; a TODO with an empty answer, or without one, is left.

    ACCEPT keeps a value of the draft. The items of a list are separated by ",".
    """
    lines = text.splitlines()
    for question, answer in answers.items():
        if value := _value(question, answer.strip()):
            lines[question.line] = f"{question.key} = {value}"
    return "\n".join(lines) + "\n"


def _value(question: DraftQuestion, answer: str) -> str:
    if not answer or answer == ACCEPT:
        return question.value if answer else ""
    if not question.value.startswith("["):
        return json.dumps(answer, ensure_ascii=False)
    return json.dumps([item.strip() for item in answer.split(",") if item.strip()], ensure_ascii=False)
