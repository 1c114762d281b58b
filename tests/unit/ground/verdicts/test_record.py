"""A record holds its planned case; commands print it flat."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from matrix.ground.catalog.codec import MalformedError, decode, encode
from matrix.ground.verdicts.record import GREEN, RED, SILENT, Record, Verdict
from tests.unit.show.samples import changed, record


@pytest.mark.parametrize("verdict", Verdict)
def test_record_survives_the_round_trip_through_json(verdict: Verdict) -> None:
    whole = changed(record(verdict), ranks=2, gpus=2, source="./Megatron-LM@fix", notes=("twin of ngc-24.07",))
    assert decode(Record, json.loads(json.dumps(encode(whole)))) == whole


def test_printed_record_repeats_nothing() -> None:
    printed = record(Verdict.REPRODUCED).to_json()
    assert (printed["outcome"], printed["seconds"]) == ("raised", 1.1)
    assert not {"kind", "reason", "seconds"} & printed["detail"].keys()
    assert not {"planned", "ranks", "key"} & printed.keys()


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"verdict": "fine"}, "verdict"),
        ({"outcome": {"kind": "passed", "ranks": [{"rank": "0"}]}}, "outcome.ranks[0].rank"),
        ({"outcome": {"kind": "passed", "seconds": float("nan")}}, "outcome.seconds"),
        ({"planned": {}}, "planned"),
        ({"resolved": {"torch": 2}}, "resolved.torch"),
        ({"verdicts": 1}, "verdicts"),
    ],
)
def test_malformed_record_raises_with_its_path(change: dict[str, Any], where: str) -> None:
    with pytest.raises(MalformedError) as caught:
        decode(Record, {**encode(record()), **change})
    assert caught.value.where == where


def test_silent_verdicts_have_their_own_colours() -> None:
    assert {verdict.colour for verdict in SILENT} == {"unavailable", "not-reached"}
    assert not SILENT & (GREEN | RED)


def test_other_verdict_keeps_the_planned_case() -> None:
    assert replace(record(), verdict=Verdict.REGRESSED).key == record().key
