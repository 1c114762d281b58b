"""JUnit XML as GitHub, GitLab and Jenkins read it: red is a failure, no result is skipped with its reason."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from matrix.report.words import MEANING, group_by, is_red, render_chain, verdict_reason
from matrix.store.night import Night
from matrix.verdicts.record import SILENT, Record
from matrix.verdicts.text import one_line, tail, visible


def junit(night: Night) -> str:
    """Return the document: a suite per failure and level, a test case per planned case, its axes as properties."""
    root = Element("testsuites", {"name": visible(night.run), **_totals(night.records)})
    groups = group_by(lambda record: (record.failure, record.level), night.records)
    for (failure, level), members in sorted(groups.items()):
        timestamp = {"timestamp": visible(night.began[:19])} if night.began else {}
        name = visible(f"{failure}.{level.value}")
        suite = SubElement(root, "testsuite", {"name": name, **_totals(members), **timestamp})
        for record in members:
            _add_case(suite, record, name)
    indent(root, "")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{tostring(root, "unicode")}\n'


def _totals(records: Sequence[Record]) -> dict[str, str]:
    return {
        "tests": str(len(records)),
        "failures": str(sum(map(is_red, records))),
        "errors": "0",
        "skipped": str(sum(record.verdict in SILENT for record in records)),
        "time": f"{sum(record.outcome.seconds for record in records):.3f}",
    }


def _add_case(suite: Element, record: Record, classname: str) -> None:
    """Add a test case; what XML can't hold of a text is written out (`visible`)."""
    facts = {
        "cell": record.cell.id,
        "base": record.cell.base,
        "torch": record.cell.torch,
        **record.cell.named,
        "level": record.level.value,
        "expectation": record.expectation.value,
        "verdict": record.verdict.value,
        "cached_from": record.cached_from,
    }
    name = visible(f"{record.case} {record.cell.id}")
    case = SubElement(suite, "testcase", classname=classname, name=name, time=f"{record.outcome.seconds:.3f}")
    properties = SubElement(case, "properties")
    for fact, value in facts.items():
        if value:
            SubElement(properties, "property", name=fact, value=visible(value))
    if record.verdict in SILENT:
        SubElement(case, "skipped", message=visible(f"{record.verdict.value}: {verdict_reason(record)}"))
        return
    texts = [f"reproduce: {record.reproduce}", *(f"note: {one_line(note)}" for note in record.notes)]
    if is_red(record):
        if record.outcome.chain:
            texts.append(render_chain(record.outcome.chain))
        if record.outcome.evidence:
            texts += ["end of the log:", tail(record.outcome.evidence)]
        message = visible(f"{record.verdict.value} ({MEANING[record.verdict]}): {verdict_reason(record)}")
        end = SubElement(case, "failure", type=record.verdict.value, message=message)
    else:
        end = SubElement(case, "system-out")
        texts.insert(0, verdict_reason(record))
    end.text = visible("\n".join(texts))
