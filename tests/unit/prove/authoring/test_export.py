"""The catalog as JSON."""

from __future__ import annotations

import pytest

from matrix.cli.main import main
from tests.schemas import items_of
from tests.unit.catalogs import real


def test_every_entry_is_plain_json_with_its_ranges(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["catalog", "export"]) == 0
    exported = items_of(capsys.readouterr().out, "catalog")
    assert [one["id"] for one in exported] == [one.id for one in real().failures]
    ranges = [rule["mcore"] for one in exported for rule in one.get("affected", []) if "mcore" in rule]
    assert all(isinstance(text, str) for text in ranges)
    assert ranges != []
    assert not any("folder" in one for one in exported)
