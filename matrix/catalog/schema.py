"""Conversion of TOML tables to frozen dataclasses; errors have where, what, got, expected and fix."""

from __future__ import annotations

import dataclasses
import re
import sys
import types
from collections.abc import Mapping
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from packaging.specifiers import InvalidSpecifier

from matrix.catalog.patterns import ambiguity
from matrix.catalog.versions import Range, is_version
from matrix.errors import MatrixError, closest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T")
UNITS: Final = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}  # bytes


class Identifier(str):
    """A name that users type: only letters, digits and . _ + -."""


class VersionText(str):
    """A PEP 440 version, kept as written."""


class Size(int):
    """Bytes, written as "64 MiB"."""


class Pattern(str):
    """A regular expression, searched in the text."""


def read_toml(path: Path) -> dict[str, Any]:
    """Return the file's table. Raises MatrixError when it can't be read or is no TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise MatrixError("the file can't be read", where=str(path), got=error.strerror) from None
    except (ValueError, RecursionError) as error:  # no UTF-8, no TOML, a number of 5,000 digits, nested 1,000 times
        raise MatrixError("the file is not TOML", where=str(path), got=error, expected="TOML 1.0 in UTF-8") from None


def build(kind: type[T], value: Any, where: str) -> T:
    """Return `value`, a TOML table, as the dataclass `kind`; `where` is "FILE: key" for errors."""
    if not isinstance(value, Mapping):
        raise MatrixError("not a table", where=where, got=_shown(value), expected=f"[{kind.__name__}] keys")
    hints, fields = _hints(cast(Any, kind)), _fields(cast(Any, kind))
    for key in value:
        if key not in fields:
            raise MatrixError(
                "unknown key", where=f"{where}.{key}", got=key, expected="a key of this table", fix=closest(key, fields)
            )
    made = {}
    for name, field in fields.items():
        if name in value:
            made[name] = convert(hints[name], value[name], f"{where}.{name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise MatrixError(
                "a key is missing",
                where=where,
                got=", ".join(value) or "an empty table",
                expected=name,
                fix=f"add {name} = ...",
            )
    return kind(**made)


@cache
def _fields(kind: Any) -> dict[str, dataclasses.Field[Any]]:
    return {field.name: field for field in dataclasses.fields(kind) if field.metadata.get("toml", True)}


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def convert(hint: Any, value: Any, where: str) -> Any:
    """Return `value` converted to the type `hint`. Raises MatrixError."""
    if hint is str and type(value) is str:  # most values: a catalog has 6,000
        return value
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        members = [part for part in get_args(hint) if part is not type(None)]
        chosen = next((part for part in members if _fits(part, value)), members[0])
        return convert(chosen, value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise MatrixError("not a list", where=where, got=_shown(value), expected="[...]")
        return tuple(convert(get_args(hint)[0], item, f"{where}[{place}]") for place, item in enumerate(value))
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise MatrixError("not a table", where=where, got=_shown(value), expected="{ name = ... }")
        return {str(key): convert(get_args(hint)[1], item, f"{where}.{key}") for key, item in value.items()}
    if dataclasses.is_dataclass(hint) and hint is not Range:
        return build(cast(type, hint), value, where)
    if isinstance(hint, type) and issubclass(hint, Enum):
        if value not in [member.value for member in hint]:
            raise MatrixError(
                "unknown value",
                where=where,
                got=_shown(value),
                expected=" or ".join(str(member.value) for member in hint),
            )
        return hint(value)
    if hint is Any:
        return value
    return _scalar(hint, value, where)


def _scalar(hint: type, value: Any, where: str) -> Any:
    if hint is Size:
        return _size(value, where)
    base: Any = str if issubclass(hint, str) or hint is Range else hint
    if not isinstance(value, base) or (base is int and isinstance(value, bool)):
        raise MatrixError(
            "a value of the wrong type",
            where=where,
            got=_shown(value),
            expected={str: "text in quotes", bool: "true or false"}.get(base, base.__name__),
        )
    if hint is Range:
        try:
            return Range(value)
        except InvalidSpecifier as error:
            raise MatrixError(
                "not a version range",
                where=where,
                got=error,
                expected='PEP 440 clauses: ">=0.6,<0.9"',
                fix="join clauses with a comma; put an operator before each version",
            ) from None
    if hint is VersionText and not is_version(value):
        raise MatrixError("not a version", where=where, got=_shown(value), expected="a PEP 440 version: 1.8.0+37280ec")
    if hint is Identifier and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]*", value):
        raise MatrixError("not an id", where=where, got=_shown(value), expected="letters, digits and . _ + -")
    if hint is Pattern:
        try:
            re.compile(value)
        except re.error as error:
            raise MatrixError(
                "not a regular expression",
                where=where,
                got=f"{value!r}: {error}",
                expected="Python's re syntax",
                fix="use single quotes in TOML, so that \\ stays",
            ) from None
        if reason := ambiguity(value):
            raise MatrixError(
                "this regular expression may take exponential time",
                where=where,
                got=f"{_shown(value)}: {reason}",
                expected="repeats whose iterations match in one way only",
                fix="repeat a character class instead of a group: [ab]+, not (a+b?)+",
            )
    return value


def _size(value: Any, where: str) -> Size:
    found = re.fullmatch(r"(\d+) ?([KMGT])iB", value) if isinstance(value, str) else None
    if found is None or int(found[1]) < 1:
        raise MatrixError("not a size", where=where, got=_shown(value), expected='bytes with a unit: "64 MiB", "9 GiB"')
    return Size(int(found[1]) * UNITS[found[2]])


def _fits(hint: Any, value: Any) -> bool:
    """Return whether a value fits a member of a union: lists fit tuples, tables dataclasses, else the scalar's type."""
    if get_origin(hint) is tuple:
        return isinstance(value, list)
    if dataclasses.is_dataclass(hint) and hint is not Range:
        return isinstance(value, Mapping)
    text = hint in (Range, Size) or (isinstance(hint, type) and issubclass(hint, str))
    return isinstance(value, str if text else hint)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
