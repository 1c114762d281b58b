"""Options of a preflight, and readers of their texts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from matrix.catalog.schema import UNITS
from matrix.errors import MatrixError, closest

DIGITS: Final = r"[0-9]{1,15}"  # a number of them is exact as a float, and so are its products with a unit


@dataclass(frozen=True)
class Option:
    """The option --NAME METAVAR.

    `read` converts the text, takes "--NAME" for its errors, and raises MatrixError; without it the text is the value.
    `machine` names the field of Machine that the option sets; without it the option is an argument of the job.
    """

    name: str
    metavar: str
    help: str = ""
    read: Callable[[str, str], Any] | None = None
    default: str | None = None
    required: bool = False
    machine: str = ""


def read(options: Iterable[Option], given: Mapping[str, str | None]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments of the job and the fields of Machine; an option not given has its default or is left out.

    Raises MatrixError for a bad value and for a name that is no option.
    """
    arguments: dict[str, Any] = {}
    machine: dict[str, Any] = {}
    known = {option.name: option for option in options}
    for name in given:
        if name not in known:
            raise MatrixError("no such option", got=name, expected=", ".join(known) or "no options")
    for name, option in known.items():
        text = given.get(name)
        text = option.default if text is None else text
        if text is not None:
            (machine if option.machine else arguments)[option.machine or name] = (
                option.read(text, f"--{name}") if option.read else text
            )
    return arguments, machine


def one_of(*values: str) -> Callable[[str, str], str]:
    """Return a reader that accepts only these values."""

    def choose(text: str, where: str) -> str:
        if text not in values:
            raise MatrixError(f"no such {where[2:]}", got=text, expected=", ".join(values), fix=closest(text, values))
        return text

    return choose


def count(least: int) -> Callable[[str, str], int]:
    """Return a reader of whole numbers >= `least`; its error for 128k suggests 131072."""

    def number(text: str, where: str) -> int:
        if re.fullmatch(DIGITS, text) and int(text) >= least:
            return int(text)
        thousands = re.fullmatch(rf"({DIGITS})k", text, re.IGNORECASE)
        fix = f"{int(thousands[1]) * 1024} for {text}" if thousands else None
        expected = f"a whole number, {least} or more, of at most 15 digits"
        raise MatrixError("not a count", where=where, got=_brief(text), expected=expected, fix=fix)

    return number


def size(text: str, where: str) -> int:
    """Return the bytes of "880G". Raises MatrixError."""
    found = re.fullmatch(rf"({DIGITS}(?:\.{DIGITS})?)([KMGT])(?:i?B)?", text.strip(), re.IGNORECASE)
    bytes_ = int(float(found[1]) * UNITS[found[2].upper()]) if found else 0
    if bytes_ < 1:
        raise MatrixError("not a size", where=where, got=_brief(text), expected="a number with K, M, G or T: 880G")
    return bytes_


def _brief(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:40]}... ({len(text)} characters)"
