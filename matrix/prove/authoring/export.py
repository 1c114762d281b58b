"""Export entries of the catalog as JSON, for tools that do not import this project."""

from __future__ import annotations

from typing import Any

from matrix.ground.catalog.codec import encode
from matrix.ground.catalog.failure import Failure


def failure_to_json(failure: Failure) -> dict[str, Any]:
    """Return one entry as it was loaded: groups of cases and shared stand-ins spelled out, no empty key.

    Version ranges are PEP 440 texts, sizes bytes.
    """
    entry: dict[str, Any] = _without_empty(encode(failure))
    entry.pop("folder", None)
    return entry


def _without_empty(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_empty(item) for item in value]
    if not isinstance(value, dict):
        return value
    table = {key: _without_empty(item) for key, item in value.items()}
    return {key: item for key, item in table.items() if item not in (None, [], {}, "")}
