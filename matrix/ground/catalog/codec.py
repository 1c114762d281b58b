"""Frozen dataclasses as plain data (JSON, TOML) and back, by their type hints. It runs in cells: standard library only.

A class with a plain form of its own defines `to_plain(self)`, and the class method `from_plain(value)`, which raises
MalformedError, ValueError or TypeError. Both may use `fields_to_plain` and `fields_from_plain` and change the result.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from matrix.ground.errors import MatrixError, closest

T = TypeVar("T")
LARGEST: Final = 2**53  # of a number that stands for a float, such as seconds
EXPECTED: Final = {str: "text in quotes", bool: "true or false"}  # the other types are expected by their names
PLAIN: Final = frozenset({str, bool, int, float, NoneType})
Path_ = Any  # of a value: the text of the root, or (path of the parent, key or index); joined only for an error
Reader = Callable[[Any, Path_], Any]


def _cached(function: Callable[[Any], T]) -> Callable[[Any], T]:
    """Return the function with a cache; type hints are hashable, which mypy does not know of all."""
    return cache(function)


class MalformedError(MatrixError):
    """Plain data that does not fit its type; `where` is the path of the value: "plan.json.cases[3].cell.te"."""


def decode(kind: type[T], value: Any, where: str = "") -> T:
    """Return plain data as an instance of `kind`, whose type hints hold at any depth.

    Known are dataclasses (an unknown key is refused, a missing one has its default), tuples of one type or of a fixed
    length, mappings with text keys, enums by value, unions that differ in the plain type, paths, str, bool, int, float
    (no nan) and Any. A field with the metadata `plain=False` is no key. One with `keys=KeyedField(...)` is a mapping
    whose items are keys of the table itself. `where` is the root of the path in errors.

    Raises MalformedError.
    """
    try:
        return _reader(kind)(value, where)  # type: ignore[no-any-return]
    except RecursionError:
        raise MalformedError("nested too deeply", where=where or None) from None


def decode_json(kind: type[T], text: str | bytes, where: str = "") -> T:
    """Return the JSON text as an instance of `kind`. Raises MalformedError."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedError("not JSON", where=where or None, got=error) from None
    return decode(kind, value, where)


def encode(value: Any) -> Any:
    """Return a value as plain data, which `decode` reads back: dicts, lists, str, bool, int, float and None."""
    return _writer(type(value))(value)


def fields_from_plain(kind: type[T], value: Any, *beside: str) -> T:
    """Return a dataclass from its plain fields, whether or not it has a form of its own.

    `beside` are keys that may stand next to the fields; they are not read. Raises MalformedError.
    """
    return _read_fields(kind, value, "", beside)  # type: ignore[no-any-return]


def fields_to_plain(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass as plain data, whether or not it has a form of its own."""
    content, keyed = vars(value), _keyed(type(value))
    parts = [(name, content[name]) for name in _fields(type(value))]
    if keyed:
        parts += [(keyed.written(name), part) for name, part in content[keyed.field].items()]
    return {name: part if type(part) in PLAIN else _writer(type(part))(part) for name, part in parts}


@_cached
def _reader(hint: Any) -> Reader:
    """Return the function that reads values of the type `hint`."""
    origin, parts = get_origin(hint), get_args(hint)
    if hint is Any:
        return lambda value, path: value
    if hasattr(hint, "from_plain"):
        return _own_form(hint)
    if origin in (Union, UnionType):
        return _union_reader(parts)
    if origin is tuple:
        return _tuple_reader(parts)
    if origin is not None and issubclass(origin, Mapping):
        return _mapping_reader(parts[1])
    if dataclasses.is_dataclass(hint):
        return lambda value, path: _read_fields(hint, value, path)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _enum_reader(hint)
    return _scalar_reader(hint)


def _read_fields(kind: Any, value: Any, path: Path_, beside: tuple[str, ...] = ()) -> Any:
    if not isinstance(value, Mapping):
        raise _malformed("not a table", path, value, f"[{kind.__name__}] keys")
    fields, arguments, missing = _fields(kind), {}, ""
    for name, (exact, read, required) in fields.items():
        part = value.get(name, dataclasses.MISSING)
        if type(part) is exact:
            arguments[name] = part
        elif part is not dataclasses.MISSING:
            arguments[name] = read(part, (path, name))
        elif required:
            missing = missing or name
    if missing or len(arguments) < len(value):
        arguments |= _further(kind, value, missing, path, beside)
    try:
        return kind(**arguments)
    except (MatrixError, ValueError, TypeError) as error:
        raise _located(error, path) from None


def _further(kind: Any, value: Mapping[str, Any], missing: str, path: Path_, beside: tuple[str, ...]) -> dict[str, Any]:
    """Return the keyed field from the keys that are no fields. Raises MalformedError for an unknown or missing key."""
    fields, keyed = _fields(kind), _keyed(kind)
    items: dict[str, Any] = {}
    for key in value:
        if key in fields or key in beside:
            continue
        name, where = keyed.named(key) if keyed else "", (path, key)
        if not keyed or not name:
            fix = closest(key, {*fields, *(keyed.words() if keyed else ())})
            raise MalformedError("unknown key", where=joined(where), got=key, expected="a key of this table", fix=fix)
        if name in items:
            raise MalformedError("named twice", where=joined(where), got=key, expected=f"one key for {name}")
        items[name] = keyed.read(value[key], where)
    if missing:
        got, fix = ", ".join(value) or "an empty table", f"add {missing} = ..."
        raise MalformedError("a key is missing", where=joined(path) or None, got=got, expected=missing, fix=fix)
    return {keyed.field: items} if keyed else {}


@dataclasses.dataclass(frozen=True)
class KeyedField:
    """A mapping whose items are keys of the table itself, as the metadata `keys` of its field states.

    `named` returns the item that a key means, "" for none; `written` the key of an item; `words` are all keys.
    """

    named: Callable[[str], str]
    written: Callable[[str], str]
    words: Callable[[], Iterable[str]]
    field: str = ""
    read: Reader = lambda value, path: value


@_cached
def _keyed(kind: Any) -> KeyedField | None:
    for field in dataclasses.fields(kind):
        if "keys" in field.metadata:
            item = get_args(get_type_hints(kind)[field.name])[1]
            keyed: KeyedField = field.metadata["keys"]
            return dataclasses.replace(keyed, field=field.name, read=_reader(item))
    return None


@_cached
def _fields(kind: Any) -> dict[str, tuple[type | None, Reader, bool]]:
    """Return of each field the type whose values are taken as they are, the reader, and whether it has no default."""
    hints = get_type_hints(kind)
    return {
        field.name: (
            _exact(hints[field.name]),
            _reader(hints[field.name]),
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
        )
        for field in dataclasses.fields(kind)
        if field.metadata.get("plain", True) and "keys" not in field.metadata
    }


def _exact(hint: Any) -> type | None:
    """Return the type whose values are read as they are: a call for each of a record's versions takes its time."""
    return hint if hint in (str, bool, int) else None


def _own_form(kind: Any) -> Reader:
    def read(value: Any, path: Path_) -> Any:
        try:
            return kind.from_plain(value)
        except (MatrixError, ValueError, TypeError, KeyError) as error:
            raise _located(error, path) from None

    return read


def _located(error: Exception, path: Path_) -> MalformedError:
    """Return the error of a constructor with the path of the value."""
    if not isinstance(error, MatrixError):
        return MalformedError("not a valid value", where=joined(path) or None, got=error)
    inside = error.where or ""
    where = f"{joined(path)}{'.' if path and inside[:1].isalnum() else ''}{inside}"
    return MalformedError(error.what, where=where or None, got=error.got, expected=error.expected, fix=error.fix)


def _union_reader(parts: tuple[Any, ...]) -> Reader:
    members = [(_plain_types(part), _reader(part)) for part in parts if part is not NoneType]
    optional, default = NoneType in parts, members[0][1]
    if len(members) == 1:
        return lambda value, path: None if value is None and optional else default(value, path)

    def read(value: Any, path: Path_) -> Any:
        if value is None and optional:
            return None
        return next((reader for types, reader in members if isinstance(value, types)), default)(value, path)

    return read


def _plain_types(hint: Any) -> tuple[type, ...]:
    """Return the types of the plain data of a member of a union."""
    if (get_origin(hint) or hint) is tuple:
        return (list, tuple)
    if hint in (bool, int, float):
        return (int, float) if hint is float else (hint,)
    text = isinstance(hint, type) and (issubclass(hint, (str, Path)) or hasattr(hint, "from_plain"))
    return (str,) if text else (Mapping,)


def _tuple_reader(parts: tuple[Any, ...]) -> Reader:
    readers = [_reader(part) for part in parts if part is not ...]
    uniform, fixed = readers[0], ... not in parts

    def read(value: Any, path: Path_) -> tuple[Any, ...]:
        if not isinstance(value, (list, tuple)):
            raise _malformed("not a list", path, value, "[...]")
        if not fixed:
            return tuple([uniform(item, (path, index)) for index, item in enumerate(value)])
        if len(value) != len(readers):
            raise _malformed("a list of another length", path, value, f"{len(readers)} values")
        return tuple([read(item, (path, index)) for index, (read, item) in enumerate(zip(readers, value, strict=True))])

    return read


def _mapping_reader(hint: Any) -> Reader:
    exact, read_value = _exact(hint), _reader(hint)

    def read(value: Any, path: Path_) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise _malformed("not a table", path, value, "{ name = ... }")
        return {str(key): item if type(item) is exact else read_value(item, (path, key)) for key, item in value.items()}

    return read


def _enum_reader(kind: type[Enum]) -> Reader:
    members = {member.value: member for member in kind}

    def read(value: Any, path: Path_) -> Enum:
        try:
            return members[value]
        except (KeyError, TypeError):  # TypeError: a list or a table
            raise _malformed("unknown value", path, value, " or ".join(map(str, members))) from None

    return read


def _scalar_reader(kind: type) -> Reader:
    plain: Any = str if kind is Path else kind
    expected = EXPECTED.get(plain, plain.__name__)

    def read(value: Any, path: Path_) -> Any:
        if type(value) is plain or (plain is str and isinstance(value, str)):
            return Path(value) if kind is Path else value
        raise _malformed("a value of the wrong type", path, value, expected)

    def read_float(value: Any, path: Path_) -> Any:
        if type(value) in (int, float) and abs(value) < LARGEST:  # False for nan
            return value
        raise _malformed("a value of the wrong type", path, value, expected)

    return read_float if plain is float else read


@_cached
def _writer(kind: Any) -> Callable[[Any], Any]:
    """Return the function that writes values of a class."""
    if hasattr(kind, "to_plain"):
        return cast(Callable[[Any], Any], kind.to_plain)
    if dataclasses.is_dataclass(kind):
        return fields_to_plain
    if issubclass(kind, Enum):
        return lambda value: value.value
    if issubclass(kind, Mapping):
        return lambda value: {encode(key): encode(item) for key, item in value.items()}
    if issubclass(kind, (tuple, list)):
        return lambda value: [item if type(item) in PLAIN else encode(item) for item in value]
    if issubclass(kind, (set, frozenset)):
        return lambda value: sorted(map(encode, value))
    if issubclass(kind, Path):
        return str
    if issubclass(kind, (str, bool, int, float, NoneType)):
        return lambda value: value
    raise TypeError(f"{kind.__name__} has no plain form")


def joined(path: Path_) -> str:
    """Return the path of a value as text: plan.json.cases[3].cell."""
    parts: list[str] = []
    while isinstance(path, tuple):
        path, key = path
        parts.append(f"[{key}]" if isinstance(key, int) else f".{key}")
    return f"{path}{''.join(reversed(parts))}".removeprefix("" if path else ".")


def _malformed(what: str, path: Path_, value: Any, expected: str) -> MalformedError:
    return MalformedError(what, where=joined(path) or None, got=shown(value), expected=expected)


def shown(value: Any) -> str:
    """Return a value for an error, in at most 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
