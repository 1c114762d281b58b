"""The catalog as JSON."""

from __future__ import annotations

import json

from matrix.authoring.export import catalog_to_json
from tests.unit.catalogs import real


def test_every_entry_is_plain_json_with_its_ranges() -> None:
    exported = json.loads(json.dumps(catalog_to_json(real())))
    assert [one["id"] for one in exported["failures"]] == [one.id for one in real().failures]
    ranges = [rule["mcore"] for one in exported["failures"] for rule in one.get("affected", []) if "mcore" in rule]
    assert all(isinstance(text, str) for text in ranges)
    assert ranges != []
    assert not any("folder" in one for one in exported["failures"])
