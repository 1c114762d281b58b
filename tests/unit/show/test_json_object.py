"""The published schemas of what `--json` prints."""

from __future__ import annotations

import json
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from matrix.ask.check.rulings import Standing
from matrix.ground.catalog.failure import Expectation, Level
from matrix.ground.verdicts.outcome import OutcomeKind
from matrix.ground.verdicts.record import Verdict
from matrix.prove.bisection.noise import ProbeResult
from matrix.read.api.finding import FindingKind
from matrix.show.terminal import json_object
from tests.schemas import SCHEMAS, items_of, validator
from tests.unit.show.samples import record


@pytest.mark.parametrize("path", sorted(SCHEMAS.glob("*.json")), ids=lambda path: path.stem)
def test_schema_has_the_one_shape(path: Path) -> None:
    schema = json.loads(path.read_text())
    validator(path.stem)
    assert schema["required"] == list(schema["properties"])
    assert schema["required"][:3] == ["schema", "version", "items"]
    assert schema["properties"]["schema"]["const"].split("/")[:2] == ["megatrix", path.stem]
    assert schema["additionalProperties"] is False


def described(schema: Any, key: str) -> Iterator[Any]:
    """Yield each description of a property of this name."""
    if isinstance(schema, dict):
        if key in schema:
            yield schema[key]
        schema = list(schema.values())
    if isinstance(schema, list):
        for part in schema:
            yield from described(part, key)


@pytest.mark.parametrize(
    ("name", "key", "values"),
    [
        ("records", "verdict", Verdict),
        ("records", "outcome", OutcomeKind),
        ("records", "expectation", Expectation),
        ("plan", "level", Level),
        ("check", "standing", Standing),
        ("contract", "kind", FindingKind),
        ("bisect", "seen", ProbeResult),
    ],
)
def test_schema_has_every_value(name: str, key: str, values: type[Enum]) -> None:
    found = [one["enum"] for one in described(json.loads((SCHEMAS / f"{name}.json").read_text()), key) if "enum" in one]
    assert found
    assert all(one == [value.value for value in values] for one in found)


@pytest.mark.parametrize("verdict", Verdict)
def test_record_of_every_verdict_fits(verdict: Verdict) -> None:
    text = json_object("records/1", [record(verdict).to_json()])
    assert len(text.splitlines()) == 1
    assert items_of(text, "records") == [json.loads(json.dumps(record(verdict).to_json()))]
