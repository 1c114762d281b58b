"""The catalog as data: one JSON object with every entry, for tools that do not import this project."""

from __future__ import annotations

from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import Any, Final

from matrix import __version__
from matrix.catalog.failure import Failure
from matrix.catalog.model import Catalog
from matrix.catalog.versions import Range

FORMAT: Final = 1  # grows when a key changes its meaning


def catalog_to_json(catalog: Catalog) -> dict[str, Any]:
    """Return {"format", "version", "failures": [...]}; version ranges are PEP 440 texts, sizes bytes."""
    return {
        "format": FORMAT,
        "version": __version__,
        "failures": [failure_to_json(failure) for failure in catalog.failures],
    }


def failure_to_json(failure: Failure) -> dict[str, Any]:
    """Return one entry as it was loaded: groups of cases and shared stand-ins are spelled out."""
    values = asdict(failure, dict_factory=_plain)
    return {name: value for name, value in values.items() if name != "folder" and value not in (None, [], {}, "")}


def _plain(items: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: _value(value) for name, value in items if value not in (None, (), "", {})}


def _value(value: Any) -> Any:
    if isinstance(value, Range):
        return value.text
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple):
        return [_value(one) for one in value]
    return value
