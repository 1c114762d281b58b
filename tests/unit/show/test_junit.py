"""JUnit XML: well-formed for any log; red is a failure, no result is skipped."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from matrix.ground.verdicts.record import Record, Verdict
from matrix.prove.store.stored_run import Night
from matrix.show.findings import night_junit
from tests.profiles import tries
from tests.unit.show.samples import night, record
from tests.unit.show.test_page import HOSTILE, poisoned


def made(records: list[Record]) -> ET.Element:
    return ET.fromstring(night_junit(Night("a", tuple(records), "2026-01-31T02:00:00.000Z")).encode("utf-8"))


def test_every_planned_case_is_a_test_case() -> None:
    root, records = made(night()), night()
    cases = root.findall("testsuite/testcase")
    assert len(cases) == int(root.get("tests", "")) == len(records)
    for tag, total in (("failure", "failures"), ("skipped", "skipped")):
        assert len(root.findall(f"testsuite/testcase/{tag}")) == int(root.get(total, ""))
        assert sum(int(suite.get(total, "")) for suite in root) == int(root.get(total, ""))


def test_suite_is_one_failure_at_one_level() -> None:
    assert [suite.get("name") for suite in made(night())] == [
        "cut-offload-args.contract", "dud-assertion.cpu", "dud-assertion.gpu", "long-samples.cpu", "tx-overlap.gpu",
    ]  # fmt: skip


def test_red_case_has_reason_and_command() -> None:
    red = record(Verdict.UNEXPLAINED)
    (failure,) = made([red]).findall(".//failure")
    assert failure.get("type") == "unexplained"
    assert "_write_item() missing 2 required" in failure.get("message", "")
    assert f"reproduce: {red.reproduce}" in (failure.text or "")


def test_case_without_result_is_skipped_with_reason() -> None:
    (skipped,) = made([record(Verdict.UNAVAILABLE)]).findall(".//skipped")
    assert skipped.get("message") == "unavailable: needs 8 GPUs; host has 0"


def test_green_case_is_neither_failed_nor_skipped() -> None:
    root = made([record(), record(Verdict.REPRODUCED, case="pp2"), record(Verdict.LEARNED, case="world1")])
    assert root.findall(".//failure") == root.findall(".//skipped") == []


def test_cell_axes_are_properties() -> None:
    found = {each.get("name"): each.get("value") for each in made([record()]).findall(".//property")}
    assert found["base"] == "torch-2.4.0"
    assert (found["torch"], found["mcore"], found["te"], found["driver"]) == ("2.4.0", "0.8.0", "none", "none")
    assert (found["level"], found["expectation"], found["verdict"]) == ("cpu", "works", "holds")


def test_secrets_are_masked() -> None:
    assert "hunter2" not in night_junit(Night("a", (record(Verdict.UNEXPLAINED),)))


@tries(100)
@given(st.sampled_from(list(Verdict)), st.sampled_from(HOSTILE) | st.text(st.characters()))
def test_any_text_yields_well_formed_xml(verdict: Verdict, text: str) -> None:
    assert len(made([poisoned(record(verdict), text)]).findall(".//testcase")) == 1
