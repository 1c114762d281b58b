"""The decoded catalog in one file of the cache, for the next command: reading and checking 100 entries takes 0.07 s.

The file has plain data of `marshal`, which can't name a class or a function: the type hints of the catalog's classes
state what becomes of it. A file of another user, of other contents, or that is damaged counts as none.
"""

from __future__ import annotations

import dataclasses
import hashlib
import marshal
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from enum import Enum
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

from matrix.ground.catalog.regular_file import LARGEST, UnreadableError, open_regular, read_regular
from matrix.ground.errors import MatrixError

T = TypeVar("T")
DIGEST: Final = hashlib.sha256
SIZE: Final = DIGEST().digest_size
KEPT: Final = 8  # snapshots: of as many checkouts, versions and sets of folders
SUFFIX: Final = ".catalog"
_CODE: Final = Path(__file__).parent  # what decodes and checks


def digest_of(paths: Iterable[Path]) -> bytes:
    """Return the digest of files with their paths, of the code that decodes them, and of Python.

    Raises UnreadableError.
    """
    digest = DIGEST(f"{sys.version} {sys.platform}".encode())
    for path in (*sorted(_CODE.glob("*.py")), *paths):
        content = read_regular(path)
        digest.update(f"\0{path}\0{len(content)}\0".encode("utf-8", "surrogateescape"))
        digest.update(content)
    return digest.digest()


def name_of(*folders: Path) -> str:
    """Return the name of the snapshot of a catalog that has these folders."""
    return DIGEST("\0".join(map(str, folders)).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def read_snapshot(path: Path, kind: type[T], digest: bytes) -> T | None:
    """Return what `write_snapshot` wrote for these contents, None where there is no such file."""
    try:
        with open_regular(path, largest=LARGEST) as file:
            if os.fstat(file.fileno()).st_uid != os.geteuid():
                return None
            content = file.read()
        state = content[2 * SIZE :]
        if content[: 2 * SIZE] != digest + DIGEST(state).digest():
            return None
        value: T = _thaw(kind)(marshal.loads(state))  # noqa: S302  (of this user, whole, and data alone)
        return value
    except (UnreadableError, OSError, ValueError, TypeError, EOFError, AttributeError):
        return None


def write_snapshot(path: Path, value: Any, digest: bytes) -> None:
    """Keep a value for these contents; do nothing where the folder can't be written or a value is not plain.

    The file is renamed when it is whole. Of the others in the folder the newest stay.
    """
    with suppress(OSError, ValueError, MatrixError):
        state = marshal.dumps(frozen(value))
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
        try:
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(digest + DIGEST(state).digest() + state)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        snapshots = sorted(path.parent.glob(f"*{SUFFIX}"), key=lambda kept: -kept.stat().st_mtime)
        for old in snapshots[KEPT:]:
            old.unlink(missing_ok=True)


def frozen(value: Any) -> Any:
    """Return a value as plain data: tuples for dataclasses, whose fields have the order of the class."""
    kind: Any = type(value)
    if hasattr(kind, "__dataclass_fields__"):
        return tuple([frozen(getattr(value, name)) for name in _names(kind)])
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): frozen(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return kind(map(frozen, value))
    for plain in (str, int):
        if isinstance(value, plain) and kind is not bool:
            return plain(value)
    return str(value) if isinstance(value, Path) else value


def thawed(kind: type[T], value: Any) -> T:
    """Return the value of plain data; its type hints are not checked again."""
    thawed_value: T = _thaw(kind)(value)
    return thawed_value


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


def _thaw(hint: Any) -> Callable[[Any], Any]:
    """Return the function that reads values of a type; a plain one stays as it is."""
    return _thawer(hint) or (lambda value: value)


@cache
def _thawer(hint: Any) -> Callable[[Any], Any] | None:
    """Return the function that reads values of a type, None for a type whose plain data are the value itself."""
    origin, parts = get_origin(hint), [part for part in get_args(hint) if part is not NoneType]
    if dataclasses.is_dataclass(hint):
        return _dataclass_thawer(hint)
    if origin is None:
        is_own = isinstance(hint, type) and issubclass(hint, (Enum, Path, int)) and hint not in (int, bool)
        return hint if is_own else None
    read = next(filter(None, map(_thawer, parts)), None)
    if read is None:
        return None
    if origin in (Union, UnionType) and len(parts) == 1:
        return lambda value: None if value is None else read(value)
    if origin is tuple and parts[1:] == [...]:
        return lambda value: tuple([read(item) for item in value])
    if issubclass(origin, Mapping):
        return lambda value: {key: read(item) for key, item in value.items()}
    raise TypeError(f"{hint} has no frozen form")


def _dataclass_thawer(kind: Any) -> Callable[[Any], Any]:
    names, hints = _names(kind), get_type_hints(kind)
    readers = [(name, read) for name in names if (read := _thawer(hints[name]))]

    def read_fields(value: tuple[Any, ...]) -> Any:
        state = dict(zip(names, value, strict=True))
        for name, read in readers:
            part = state[name]
            if part != ():
                state[name] = read(part)
        made = object.__new__(kind)
        made.__dict__.update(state)
        return made

    return read_fields
