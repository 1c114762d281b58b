"""The JSON schema of failure.toml (docs/schema/toml/failure.json), from the type hints of the catalog, for editors.

An editor completes keys, shows their meaning and marks a wrong value; `megatrix catalog check` remains the judge.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from matrix.ground.catalog.failure import Failure
from matrix.ground.catalog.schema import Identifier, Month
from matrix.ground.catalog.versions import SIDES, ReleaseBoundary

TEXT: Final = {"type": "string"}
PLAIN: Final = {str: "string", bool: "boolean", int: "integer", float: "number"}
PATTERNS: Final = {Identifier: "^[A-Za-z0-9][A-Za-z0-9._+-]*$", Month: r"^20\d\d-(0[1-9]|1[0-2])$"}


def entry_schema() -> dict[str, Any]:
    """Return the schema: that of Failure, with the keys that loading turns into others (`each`, ...)."""
    definitions: dict[str, Any] = {}
    _of(Failure, definitions)
    entry, case = definitions["Failure"], definitions["Case"]
    entry["properties"]["stand_ins"] = {"type": "array", "items": TEXT, "description": "names in kit/shared.toml"}
    entry["properties"]["boundary"] = _of(Mapping[str, ReleaseBoundary], definitions)
    entry["required"].remove("axes")
    night = definitions["NightShare"]["properties"]
    for name in ("mcore", "te"):
        night[name] = {"anyOf": [{"const": SIDES}, night[name]]}
    variant = {"allOf": [{"$ref": "#/$defs/Case"}], "description": "keys of one of several cases of this table"}
    case["properties"]["each"] = {"type": "array", "items": variant}
    case["properties"]["limits"] = {"anyOf": [TEXT, case["properties"]["limits"]]}
    case["required"] = []  # a variant has the others
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "failure.toml of Megatrix",
        "$ref": "#/$defs/Failure",
        "$defs": definitions,
    }


def _of(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of the plain data of a type; that of a dataclass is put among the definitions."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        schemas = [_of(part, definitions) for part in parts if part is not NoneType]
        return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
    if origin is tuple:
        return {"type": "array", "items": _of(parts[0], definitions)}
    if origin is not None:
        return {"type": "object", "additionalProperties": _of(parts[1], definitions)}
    if hint is Any:
        return {}
    if dataclasses.is_dataclass(hint) and not hasattr(hint, "from_plain"):
        name = str(getattr(hint, "__name__", ""))
        if name not in definitions:
            definitions[name] = {}  # before its fields, which may name it
            definitions[name] |= _table(hint, definitions)
        return {"$ref": f"#/$defs/{name}"}
    if issubclass(hint, Enum):
        return {"enum": [member.value for member in hint]}
    if hint in PATTERNS:
        return TEXT | {"pattern": PATTERNS[hint]}
    return {"type": PLAIN[hint]} if hint in PLAIN else TEXT  # a version, a range, a pattern, a size


def _table(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    properties: dict[str, Any] = {}
    required: list[str] = []
    further: Any = False
    for field in dataclasses.fields(kind):
        if keyed := field.metadata.get("keys"):
            item = _of(get_args(hints[field.name])[1], definitions)
            properties = dict.fromkeys(sorted(keyed.words()), item) | properties
            further = item  # a package that components.toml does not name
        elif field.metadata.get("plain", True) and hints[field.name] is not Path:
            properties[field.name] = _of(hints[field.name], definitions)
            if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
                required.append(field.name)
    return {
        "type": "object",
        "description": " ".join((kind.__doc__ or "").split("\n\n")[0].split()),
        "properties": properties,
        "required": required,
        "additionalProperties": further,
    }
