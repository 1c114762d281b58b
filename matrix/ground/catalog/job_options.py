"""The options by which a user describes a job and its machine, as data: those of `check`, and each preflight's own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from matrix.ground.catalog.schema import UNITS
from matrix.ground.catalog.versions import is_version
from matrix.ground.errors import MatrixError, closest

DIGITS: Final = r"[0-9]{1,15}"  # a number of them is exact as a float, and so are its products with a unit


class OptionKind(str, Enum):
    """The form of a value."""

    TEXT = "text"
    COUNT = "count"  # a whole number
    SIZE = "size"  # bytes with a unit: 880G
    VERSION = "version"
    CAPABILITY = "capability"  # of a GPU: 9.0


@dataclass(frozen=True)
class JobOption:
    """The option --NAME METAVAR. Its text is one of `choices`, if there are any; a count is `least` or more.

    `argument` is the argument of the training command that states the value where the user gives none. `machine` names
    the field of Machine that the option sets; without it the option is an argument of the job.
    """

    name: str
    metavar: str
    help: str = ""
    kind: OptionKind = OptionKind.TEXT
    choices: tuple[str, ...] = ()
    least: int = 0
    default: str | None = None
    argument: str = ""
    machine: str = ""

    def read(self, text: str) -> str | int:
        """Return the value of a text. Raises MatrixError."""
        where, brief = f"--{self.name}", text if len(text) <= 40 else f"{text[:40]}... ({len(text)} characters)"
        if self.choices and text not in self.choices:
            expected = ", ".join(self.choices)
            raise MatrixError(f"no such {self.name}", got=text, expected=expected, fix=closest(text, self.choices))
        if self.kind is OptionKind.VERSION and not is_version(text):
            raise MatrixError("not a version", got=f"{where} {text}", expected=f"such as {where} 535.129.03")
        if self.kind is OptionKind.CAPABILITY and not re.fullmatch(r"\d{1,2}\.\d", text):
            raise MatrixError("not a compute capability", got=f"{where} {text}", expected=f"such as {where} 9.0")
        if self.kind is OptionKind.COUNT:
            if re.fullmatch(DIGITS, text) and int(text) >= self.least:
                return int(text)
            thousands = re.fullmatch(rf"({DIGITS})k", text, re.IGNORECASE)
            fix = f"{int(thousands[1]) * 1024} for {text}" if thousands else None
            expected = f"a whole number, {self.least} or more, of at most 15 digits"
            raise MatrixError("not a count", where=where, got=brief, expected=expected, fix=fix)
        if self.kind is OptionKind.SIZE:
            size = re.fullmatch(rf"({DIGITS}(?:\.{DIGITS})?)([KMGT])(?:i?B)?", text.strip(), re.IGNORECASE)
            bytes_ = int(float(size[1]) * UNITS[size[2].upper()]) if size else 0
            if bytes_ < 1:
                raise MatrixError("not a size", where=where, got=brief, expected="a number with K, M, G or T: 880G")
            return bytes_
        return text


@dataclass(frozen=True)
class PreflightOptions:
    """The table [preflight] of a failure whose folder has preflight.py.

    `subject` is a short name of what it judges. `variables` are the environment variables that it reads: no others are
    kept, since an environment holds secrets.
    """

    subject: str = ""
    variables: tuple[str, ...] = ()
    option: tuple[JobOption, ...] = ()


NO_OPTIONS: Final = PreflightOptions()


def read_options(
    options: Iterable[JobOption], texts: Mapping[str, str | None]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments of the job and the fields of Machine; an option not given has its default or is left out.

    Raises MatrixError for a bad value and for a name that is no option.
    """
    arguments: dict[str, Any] = {}
    machine: dict[str, Any] = {}
    by_name = {option.name: option for option in options}
    for name in texts:
        if name not in by_name:
            raise MatrixError("no such option", got=name, expected=", ".join(by_name) or "no options")
    for name, option in by_name.items():
        text = option.default if texts.get(name) is None else texts[name]
        if text is not None:
            (machine if option.machine else arguments)[option.machine or name] = option.read(text)
    return arguments, machine
