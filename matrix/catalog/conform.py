"""Check that values read from JSON have the types that their dataclasses declare."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import cache
from types import UnionType
from typing import Any, Final, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")
# What building a value from the JSON of another version, or from damaged JSON, raises.
MALFORMED: Final = (KeyError, TypeError, ValueError, AttributeError, RecursionError)
LARGEST: Final = 2**53  # of a number that stands for a float, such as seconds


def conforming(value: T) -> T:
    """Return a dataclass instance whose fields have the declared types, at any depth. Raises TypeError."""
    for name, hint, fits in _fields(cast(Any, type(value))):
        found = getattr(value, name)
        if not fits(found):
            raise TypeError(f"{name} is {repr(found)[:80]}, not {hint}")
    return value


def items(value: Any) -> tuple[Any, ...]:
    """Return a JSON list as a tuple. Raises TypeError for a text, which Python would split into letters."""
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"{repr(value)[:80]} is not a list")
    return tuple(value)


@cache
def _fields(kind: Any) -> list[tuple[str, str, Callable[[Any], bool]]]:
    hints = get_type_hints(kind)
    return [(field.name, str(field.type), _test(hints[field.name])) for field in dataclasses.fields(kind)]


@cache
def _test(hint: Any) -> Callable[[Any], bool]:
    """Return the test whether a value has the type `hint`."""
    origin, parts = get_origin(hint), tuple(map(_test, get_args(hint)))
    if origin in (Union, UnionType):
        return lambda value: any(fits(value) for fits in parts)
    if origin is tuple:
        return lambda value: isinstance(value, tuple) and all(map(parts[0], value))
    if origin is not None and issubclass(origin, Mapping):
        key, one = parts
        return lambda value: isinstance(value, Mapping) and all(map(key, value)) and all(map(one, value.values()))
    if dataclasses.is_dataclass(hint):
        its, kind = _fields(cast(Any, hint)), cast(type, hint)
        return lambda value: isinstance(value, kind) and all(fits(getattr(value, name)) for name, _, fits in its)
    if hint is float:
        return lambda value: type(value) in (int, float) and abs(value) < LARGEST  # False for nan
    if hint is int:
        return lambda value: type(value) is int
    if hint in (Any, ...):
        return lambda value: True
    return lambda value: isinstance(value, hint)
