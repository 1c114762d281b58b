"""JUnit XML as GitHub, GitLab and Jenkins read it: red is a failure, no result is skipped with its reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from xml.etree.ElementTree import Element, indent, tostring

from matrix.ground.catalog.stack import TORCH
from matrix.ground.verdicts.record import SILENT, Record
from matrix.ground.verdicts.text import one_line, tail, visible
from matrix.prove.store.stored_run import Night
from matrix.show.escaping import xml_document
from matrix.show.findings.findings import Findings, Severity
from matrix.show.words import MEANING, group_by, is_red, render_chain, verdict_reason

ENDS: Final = {Severity.ERROR: "failure", Severity.NONE: "skipped"}  # of a test case; any other passed


def junit(findings: Findings) -> str:
    """Return the findings as one suite: what surely breaks is a failed test case, what was not checked is skipped."""
    ends = [ENDS.get(finding.severity, "system-out") for finding in findings.findings]
    counts = {"tests": str(len(ends)), "failures": str(ends.count("failure")), "skipped": str(ends.count("skipped"))}
    cases = []
    for finding, end in zip(findings.findings, ends, strict=True):
        place = {"file": finding.place.path, "line": str(max(finding.place.line, 1))} if finding.place else {}
        attributes = {"type": finding.topic.id} if end == "failure" else {}
        attributes |= {"message": finding.headline} if end != "system-out" else {}
        cases.append(
            _element(
                "testcase",
                {"classname": finding.topic.id, "name": finding.headline, **place},
                [_element(end, attributes, text=finding.message)],
            )
        )
    suite = _element("testsuite", {"name": findings.command, **counts}, cases)
    return _document(_element("testsuites", {"name": findings.command, **counts}, [suite]))


def night_junit(night: Night) -> str:
    """Return a night: a suite per failure and level, a test case per planned case, its axes as properties."""
    timestamp = {"timestamp": night.began[:19]} if night.began else {}
    groups = group_by(lambda record: (record.failure, record.level), night.records)
    suites = []
    for (failure, level), records in sorted(groups.items()):
        name = f"{failure}.{level.value}"
        cases = [_case(record, name) for record in records]
        suites.append(_element("testsuite", {"name": name, **_totals(records), **timestamp}, cases))
    return _document(_element("testsuites", {"name": night.run, **_totals(night.records)}, suites))


def _element(tag: str, attributes: dict[str, str], children: Sequence[Element] = (), text: str = "") -> Element:
    element = Element(tag, {name: visible(value) for name, value in attributes.items()})
    element.extend(children)
    element.text = visible(text) or None
    return element


def _document(root: Element) -> str:
    indent(root, "")
    return xml_document(f'<?xml version="1.0" encoding="UTF-8"?>\n{tostring(root, "unicode")}\n')


def _totals(records: Sequence[Record]) -> dict[str, str]:
    return {
        "tests": str(len(records)),
        "failures": str(sum(map(is_red, records))),
        "errors": "0",
        "skipped": str(sum(record.verdict in SILENT for record in records)),
        "time": f"{sum(record.outcome.seconds for record in records):.3f}",
    }


def _case(record: Record, classname: str) -> Element:
    facts = {
        "cell": record.cell.id,
        "base": record.cell.base,
        "torch": str(record.cell.stack[TORCH]),
        **record.cell.named,
        "level": record.level.value,
        "expectation": record.expectation.value,
        "verdict": record.verdict.value,
        "cached_from": record.cached_from,
    }
    properties = [_element("property", {"name": fact, "value": value}) for fact, value in facts.items() if value]
    seconds = f"{record.outcome.seconds:.3f}"
    attributes = {"classname": classname, "name": f"{record.case} {record.cell.id}", "time": seconds}
    return _element("testcase", attributes, [_element("properties", {}, properties), _end(record)])


def _end(record: Record) -> Element:
    """Return how a case ended: skipped, failure, or for a green one its output."""
    reason = verdict_reason(record)
    if record.verdict in SILENT:
        return _element("skipped", {"message": f"{record.verdict.value}: {reason}"})
    texts = [f"reproduce: {record.reproduce}", *(f"note: {one_line(note)}" for note in record.notes)]
    if not is_red(record):
        return _element("system-out", {}, text="\n".join([reason, *texts]))
    if record.outcome.chain:
        texts.append(render_chain(record.outcome.chain))
    if record.outcome.evidence:
        texts += ["end of the log:", tail(record.outcome.evidence)]
    message = f"{record.verdict.value} ({MEANING[record.verdict]}): {reason}"
    return _element("failure", {"type": record.verdict.value, "message": message}, text="\n".join(texts))
