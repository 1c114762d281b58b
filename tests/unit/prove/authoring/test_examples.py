"""Examples of a run: scrubbed outcomes, and look-alikes that do not show the failure."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

from matrix.ground.catalog.schema import toml_table
from matrix.ground.verdicts.outcome import Frame, Outcome, OutcomeKind, Raised
from matrix.ground.verdicts.record import Verdict
from matrix.ground.verdicts.signature_match import matched
from matrix.prove.authoring.examples import LOOK_ALIKES, SHOWS, keep, night_evidence, read, scrub, scrubbed
from tests.unit.catalogs import failure, shown
from tests.unit.show.samples import changed, record

ENTRY = failure()
RECORD = changed(record(), failure="break", verdict=Verdict.REPRODUCED, signature="broke", outcome=shown(ENTRY))


def test_a_reproduced_record_becomes_examples(tmp_path: Path) -> None:
    kept = keep(ENTRY, [RECORD])
    assert [one.name for one in kept if one.kind == SHOWS] == ["torch-2.4.0-mcore-0.8.0-tp2"]
    assert [matched(ENTRY, one.outcome) is None for one in kept] == [one.kind == LOOK_ALIKES for one in kept]
    for one in kept:
        (tmp_path / one.path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / one.path).write_text(one.text)
        assert one.outcome == read(tmp_path / one.path)


def test_other_verdicts_make_no_example() -> None:
    others = [replace(RECORD, verdict=verdict) for verdict in Verdict if verdict is not Verdict.REPRODUCED]
    assert keep(ENTRY, others) == []
    assert keep(failure("another"), [RECORD]) == []


def test_each_signature_is_kept_once() -> None:
    twice = keep(ENTRY, [RECORD, changed(RECORD, case="pp2")])
    assert [one.name for one in twice if one.kind == SHOWS] == ["torch-2.4.0-mcore-0.8.0-tp2"]


def test_each_signature_key_has_a_look_alike() -> None:
    names = {one.name for one in keep(ENTRY, [RECORD]) if one.kind == LOOK_ALIKES}
    assert names == {
        "passed-although-the-log-has-the-text",
        "text-only-in-the-log",
        "another-exception",
        "another-message",
    }


def test_a_night_counts_its_reproductions() -> None:
    evidence = night_evidence(ENTRY, [RECORD, RECORD, changed(RECORD, verdict=Verdict.HOLDS)], "20260131T02Z-night")
    assert toml_table(evidence, "night.toml") == {"date": "2026-01-31", "reproduced": {"cpu": 2}}
    assert night_evidence(failure("another"), [RECORD], "20260131T02Z-night") == ""


def test_an_example_names_no_machine() -> None:
    texts = {
        f"{Path.home()}/.cache/megatrix/overlays/0a1b2c/megatron/core/x.py": "/overlay/megatron/core/x.py",
        "/somewhere/.tox/torch2.4.0/lib/python3.10/site-packages/torch/x.py": "/site-packages/torch/x.py",
        "/somewhere/else/tests/failures/a/reproduction.py": "/megatrix/tests/failures/a/reproduction.py",
        f"connect to {socket.gethostname()} failed": "connect to node1 failed",
        "HF_TOKEN=hunter2-secret": "HF_TOKEN=[masked]",
    }
    assert {text: scrub(text) for text in texts} == texts


def test_a_scrubbed_outcome_still_shows_its_failure() -> None:
    frame = Frame("/home/me/overlays/0a1b/megatron/x.py", 7, "save")
    raw = Outcome(OutcomeKind.RAISED, "rank 0", 0, chain=(Raised("TypeError", "break broke", (frame,)),))
    clean = scrubbed(raw)
    assert clean.chain[0].frames == (Frame("/overlay/megatron/x.py", 7, "save"),)
    assert matched(ENTRY, clean) is not None
