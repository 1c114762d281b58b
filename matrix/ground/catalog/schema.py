"""The texts of TOML files that have a form of their own, such as versions, and reading of such files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from matrix.ground.catalog.codec import MalformedError, decode, shown
from matrix.ground.catalog.patterns import ambiguity, is_plain
from matrix.ground.catalog.regular_file import read_regular, within_limits
from matrix.ground.catalog.versions import is_version
from matrix.ground.errors import MatrixError

try:
    import tomli as tomllib  # compiled: a third of the time of tomllib; a cell need not have it
except ImportError:
    import tomllib  # type: ignore[no-redef, import-not-found]  # Python 3.10 has none

UNITS: Final = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}  # bytes


class Identifier(str):
    """A name that users type: only letters, digits and . _ + -."""

    @classmethod
    def from_plain(cls, value: Any) -> str:
        """Return the name. Raises MalformedError."""
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]*", decode(str, value)):
            raise MalformedError("not an id", got=shown(value), expected="letters, digits and . _ + -")
        return str(value)


class Month(str):
    """A month: "2025-04"."""

    @classmethod
    def from_plain(cls, value: Any) -> str:
        """Return the month. Raises MalformedError."""
        if not re.fullmatch(r"20\d\d-(0[1-9]|1[0-2])", decode(str, value)):
            raise MalformedError("not a month", got=shown(value), expected='year and month: "2025-04"')
        return str(value)


class VersionText(str):
    """A PEP 440 version, kept as written."""

    @classmethod
    def from_plain(cls, value: Any) -> str:
        """Return the version. Raises MalformedError."""
        if not is_version(decode(str, value)):
            raise MalformedError("not a version", got=shown(value), expected="a PEP 440 version: 1.8.0+37280ec")
        return str(value)


class Size(int):
    """Bytes, written as "64 MiB"."""

    @classmethod
    def from_plain(cls, value: Any) -> Size:
        """Return the bytes of a text. Raises MalformedError."""
        size = re.fullmatch(r"(\d+) ?([KMGT])iB", value) if isinstance(value, str) else None
        if size is None or int(size[1]) < 1:
            raise MalformedError("not a size", got=shown(value), expected='bytes with a unit: "64 MiB", "9 GiB"')
        return Size(int(size[1]) * UNITS[size[2]])


class Pattern(str):
    """A regular expression, searched in the text."""

    @classmethod
    def from_plain(cls, value: Any) -> str:
        """Return the expression. Raises MalformedError for one that does not compile or may take exponential time."""
        if is_plain(decode(str, value)):
            return str(value)
        try:
            re.compile(value)
        except re.error as error:
            raise MalformedError(
                "not a regular expression",
                got=f"{value!r}: {error}",
                expected="Python's re syntax",
                fix="use single quotes in TOML, so that \\ stays",
            ) from None
        if reason := ambiguity(value):
            raise MalformedError(
                "this regular expression may take exponential time",
                got=f"{shown(value)}: {reason}",
                expected="repeats whose iterations match in one way only",
                fix="repeat a character class instead of a group: [ab]+, not (a+b?)+",
            )
        return str(value)


def read_toml(path: Path) -> dict[str, Any]:
    """Return the file's table. Raises MatrixError when it can't be read or is no TOML."""
    return toml_table(read_regular(path), str(path))


def toml_table(content: str | bytes, where: str) -> dict[str, Any]:
    """Return the table of a TOML file with this content. Raises MatrixError when it is no TOML."""
    try:
        with within_limits(where):
            try:
                return tomllib.loads(content if isinstance(content, str) else content.decode())
            except RecursionError as error:  # nested 1,000 times
                raise ValueError(str(error)) from None
    except ValueError as error:  # no UTF-8, no TOML, a number of 5,000 digits
        raise MatrixError("the file is not TOML", where=where, got=error, expected="TOML 1.0 in UTF-8") from None
