"""JUnit XML as GitHub, GitLab and Jenkins read it: red is a failure, no result is skipped with its reason."""

from __future__ import annotations

import html
from collections.abc import Sequence

from matrix.report.words import MEANING, group_by, is_red, render_chain, verdict_reason
from matrix.store.night import Night
from matrix.verdicts.record import SILENT, Record
from matrix.verdicts.text import one_line, tail, visible


def junit(night: Night) -> str:
    """Return the document: a suite per failure and level, a test case per planned case, its axes as properties."""
    groups = group_by(lambda record: (record.failure, record.level), night.records)
    suites = "".join(_suite(members, night.began) for _, members in sorted(groups.items()))
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<testsuites name="{escape(night.run)}" {_totals(night.records)}>\n{suites}</testsuites>\n'
    )


def _suite(records: Sequence[Record], began: str) -> str:
    name = f"{records[0].failure}.{records[0].level.value}"
    timestamp = f' timestamp="{escape(began[:19])}"' if began else ""
    cases = "".join(_case(record, name) for record in records)
    return f'<testsuite name="{escape(name)}" {_totals(records)}{timestamp}>\n{cases}</testsuite>\n'


def _totals(records: Sequence[Record]) -> str:
    failures, skipped = sum(map(is_red, records)), sum(record.verdict in SILENT for record in records)
    seconds = sum(record.outcome.seconds for record in records)
    return f'tests="{len(records)}" failures="{failures}" errors="0" skipped="{skipped}" time="{seconds:.3f}"'


def _case(record: Record, suite: str) -> str:
    facts = {
        "cell": record.cell.id,
        "base": record.cell.base,
        "torch": record.cell.torch,
        "mcore": record.cell.mcore,
        "te": record.cell.te,
        "driver": record.cell.driver,
        "level": record.level.value,
        "expectation": record.expectation.value,
        "verdict": record.verdict.value,
        "cached_from": record.cached_from,
    }
    properties = "".join(f'<property name="{name}" value="{escape(fact)}"/>' for name, fact in facts.items() if fact)
    return (
        f'<testcase classname="{escape(suite)}" name="{escape(f"{record.case} {record.cell.id}")}" '
        f'time="{record.outcome.seconds:.3f}"><properties>{properties}</properties>{_end(record)}</testcase>\n'
    )


def _end(record: Record) -> str:
    if record.verdict in SILENT:
        return f'<skipped message="{escape(f"{record.verdict.value}: {verdict_reason(record)}")}"/>'
    texts = [f"reproduce: {record.reproduce}", *(f"note: {one_line(note)}" for note in record.notes)]
    if not is_red(record):
        return f"<system-out>{escape(_lines(verdict_reason(record), *texts))}</system-out>"
    if record.outcome.chain:
        texts.append(render_chain(record.outcome.chain))
    if record.outcome.evidence:
        texts.append(_lines("end of the log:", tail(record.outcome.evidence)))
    message = f"{record.verdict.value} ({MEANING[record.verdict]}): {verdict_reason(record)}"
    return f'<failure type="{record.verdict.value}" message="{escape(message)}">{escape(_lines(*texts))}</failure>'


def _lines(*parts: str) -> str:
    return "\n".join(parts)


def escape(text: str) -> str:
    """Return text for XML: control characters, which XML forbids, made visible; markup and quotes escaped."""
    return html.escape(visible(text))
