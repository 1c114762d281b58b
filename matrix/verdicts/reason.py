"""Reasons for which a case is in a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final


class ReasonKind(str, Enum):
    """The rule that puts a case into a plan."""

    STACK = "stack"  # the stack of a report
    BOUNDARY = "boundary"  # the expectation changes next to its cell
    PAIRWISE = "pairwise"  # a row of the covering array
    PICKED = "picked"  # its failure names the cell
    SOURCE = "source"  # the user gave the package under test
    UNSORTED = "unsorted"  # written by a version whose reasons had no kind


HEADS: Final = {
    ReasonKind.STACK: "stack of ",
    ReasonKind.BOUNDARY: "boundary: ",
    ReasonKind.PAIRWISE: "pairwise: ",
    ReasonKind.PICKED: "picked: ",
    ReasonKind.SOURCE: "megatron-core from ",
    ReasonKind.UNSORTED: "",
}


@dataclass(frozen=True)
class Reason:
    """A reason: a kind and a text; `str` joins both for display."""

    kind: ReasonKind
    text: str

    def __str__(self) -> str:
        return f"{HEADS[self.kind]}{self.text}"

    def to_json(self) -> dict[str, str]:
        """Return plain JSON values."""
        return {"kind": self.kind.value, "text": self.text}

    @classmethod
    def from_json(cls, reason: Mapping[str, str] | str) -> Reason:
        """Build a reason from the JSON of `to_json`, or from the sentence that earlier versions wrote in its place.

        Raises KeyError, TypeError or ValueError on anything else.
        """
        if isinstance(reason, str):
            return cls(ReasonKind.UNSORTED, reason)
        return cls(ReasonKind(reason["kind"]), reason["text"])
