"""Export entries of the catalog as JSON, for tools that do not import this project."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from matrix.catalog.failure import Failure
from matrix.catalog.versions import Range


def failure_to_json(failure: Failure) -> dict[str, Any]:
    """Return one entry as it was loaded: groups of cases and shared stand-ins spelled out, no empty key.

    Version ranges are PEP 440 texts, sizes bytes.
    """
    return {name: value for name, value in _plain(failure).items() if name != "folder"}


def _plain(value: Any) -> Any:
    if isinstance(value, Range):
        return value.text
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        return _plain({field.name: getattr(value, field.name) for field in fields(value)})
    if isinstance(value, Mapping):
        return {name: made for name, one in value.items() if (made := _plain(one)) not in (None, [], {}, "")}
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, Path) else value
