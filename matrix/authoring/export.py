"""Export the catalog as one JSON object, for tools that do not import this project."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

from matrix import __version__
from matrix.catalog.failure import Failure
from matrix.catalog.model import Catalog
from matrix.catalog.versions import Range

FORMAT: Final = 1  # increases when a key changes its meaning


def catalog_to_json(catalog: Catalog) -> dict[str, Any]:
    """Return {"format", "version", "failures": [...]}; version ranges are PEP 440 texts, sizes bytes."""
    return {
        "format": FORMAT,
        "version": __version__,
        "failures": [failure_to_json(failure) for failure in catalog.failures],
    }


def failure_to_json(failure: Failure) -> dict[str, Any]:
    """Return one entry as it was loaded: groups of cases and shared stand-ins spelled out, no empty key."""
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
