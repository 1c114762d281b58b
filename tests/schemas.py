"""What `--json` prints, checked against docs/schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import jsonschema

from matrix.prove.provision.project import ROOT

SCHEMAS = ROOT / "docs" / "schema"


@cache
def validator(name: str) -> jsonschema.Draft202012Validator:
    """Return the validator of a published schema."""
    schema: Mapping[str, Any] = json.loads((SCHEMAS / f"{name}.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def items_of(stdout: str, name: str) -> list[dict[str, Any]]:
    """Return the items of the one object on stdout. Raises ValidationError unless it has the schema of that name."""
    found: dict[str, Any] = json.loads(stdout)
    validator(name).validate(found)
    made: list[dict[str, Any]] = found["items"]
    return made


def records_of(stdout: str) -> list[dict[str, Any]]:
    """Return the records of a run, none where it was killed or ended with an error."""
    return items_of(stdout, "records") if '"megatrix/records/1"' in stdout[:40] else []
