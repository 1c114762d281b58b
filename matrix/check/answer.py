"""What is told of a machine or a job before anything starts: a question, yes or no or unknown, and why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any


class Word(str, Enum):
    """An answer in one word. What can't be told is unknown, never guessed."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Answer:
    """The answer to one question.

    `breaks` is what will happen because of it, "" if nothing does; `failure` is the catalog entry that this is.
    `warns` is what may surprise although nothing breaks.
    """

    question: str
    word: Word
    reason: str
    breaks: str = ""
    failure: str = ""
    warns: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {**vars(self), "word": self.word.value}


def known(truth: bool | None) -> Word:
    """Return the word for a truth value; None is unknown."""
    return Word.UNKNOWN if truth is None else Word.YES if truth else Word.NO
