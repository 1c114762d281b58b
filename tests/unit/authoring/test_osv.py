"""Entries in the form of OSV."""

from __future__ import annotations

import json
import re

import jsonschema
import pytest

from matrix.authoring.osv import failure_to_osv
from matrix.catalog.failure import Failure
from matrix.cli.main import main
from tests.founding import SAVE
from tests.unit.catalogs import catalog, clause, failure, real

# The parts of OSV's schema 1.6 that an entry here uses.
EVENT = {"type": "object", "minProperties": 1, "maxProperties": 1, "propertyNames": {"enum": ["introduced", "fixed"]}}
OSV = {
    "type": "object",
    "required": ["id", "modified", "schema_version"],
    "additionalProperties": False,
    "properties": {
        "schema_version": {"pattern": r"^\d+\.\d+\.\d+$"},
        "id": {"pattern": r"^[A-Z0-9]+-.+$"},
        "modified": {"pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$"},
        "summary": {"type": "string"},
        "details": {"type": "string"},
        "references": {
            "items": {
                "required": ["type", "url"],
                "properties": {"type": {"enum": ["REPORT"]}, "url": {"pattern": "^https://"}},
            }
        },
        "affected": {
            "items": {
                "required": ["package"],
                "properties": {
                    "package": {"required": ["ecosystem", "name"]},
                    "ranges": {"items": {"required": ["type", "events"], "properties": {"events": {"items": EVENT}}}},
                    "versions": {"type": "array", "items": {"type": "string"}},
                },
            }
        },
        "database_specific": {"type": "object", "required": ["warning", "predicate"]},
    },
}


@pytest.mark.parametrize("entry", real().failures, ids=lambda one: str(one.id))
def test_entry_fits_the_schema(entry: Failure) -> None:
    jsonschema.validate(json.loads(json.dumps(failure_to_osv(real(), entry))), OSV)


def test_events_are_the_projection_on_each_package() -> None:
    entry = failure(affected=(clause(mcore=">=0.7,<0.9", te="<1.9"),))
    found = {one["package"]["name"]: one for one in failure_to_osv(catalog(entry), entry)["affected"]}
    assert found["megatron-core"]["ranges"][0]["events"] == [{"introduced": "0.7.0"}, {"fixed": "0.9.0"}]
    assert found["transformer-engine"]["versions"] == ["1.8"]


def test_exact_predicate_and_its_warning_are_beside_it() -> None:
    found = failure_to_osv(real(), real().failure(SAVE))
    assert found["database_specific"]["predicate"]["affected"][0]["torch"] == ">=2.4.0"
    assert "reports too much" in found["database_specific"]["warning"]


def test_export_prints_one_advisory_for_each_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["catalog", "export", "--format", "osv"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [re.sub("^MEGATRIX-", "", one["id"]) for one in printed] == [one.id for one in real().failures]
