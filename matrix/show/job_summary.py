"""A night as Markdown: the summary of a CI job.

Text from logs appears only in code spans and code blocks, where it is neither markup nor a mention.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from matrix.ground.verdicts.record import Record
from matrix.prove.store.stored_run import Night
from matrix.show.changes import Changes
from matrix.show.escaping import code
from matrix.show.findings.markdown import table
from matrix.show.words import (
    MEANING,
    WORST_FIRST,
    group_by,
    headline,
    is_red,
    label,
    silent,
    verdict_reason,
)

ROWS: Final = 50  # of a table; GitHub accepts 1 MiB for a job's summary


def job_summary(night: Night, changes: Changes) -> str:
    """Return the night for the page of a CI job: a row per cause of red cases, missing results, counts."""
    summary = headline(night.records, night.missing)
    counts = Counter(record.verdict for record in night.records)
    largest = silent(night.records)[:ROWS]
    parts = [
        f"## Megatrix: {summary.colour}",
        f"{summary.text}; {summary.sources}. Run {code(night.run)}.",
        _table(_causes(night.records, changes)),
        "\n".join(f"- {verdict.value} x {len(members)}: {code(reason)}" for (verdict, reason), members in largest),
        "| verdict | cases | meaning |\n| --- | ---: | --- |\n"
        + "\n".join(
            f"| {verdict.value} | {counts[verdict]} | {MEANING[verdict]} |"
            for verdict in WORST_FIRST
            if counts[verdict]
        ),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _causes(records: Sequence[Record], changes: Changes) -> list[list[Record]]:
    """Return the red cases grouped by cause, new causes first, then the largest.

    With a signature, rank, line and text of the cases may differ; without one the text has to be equal.
    """
    causes = group_by(
        lambda red: (
            red.failure,
            red.verdict,
            red.signature,
            red.other,
            red.signature or red.other or verdict_reason(red),
        ),
        filter(is_red, records),
    ).values()
    return sorted(causes, key=lambda reds: (not _is_new(reds, changes), -len(reds)))


def _is_new(reds: Sequence[Record], changes: Changes) -> bool:
    return not changes.since or any(red.key in changes.newly_red for red in reds)


def _table(causes: Sequence[Sequence[Record]]) -> str:
    rows = [
        [reds[0].verdict.value, code(reds[0].failure), str(len(reds)), code(verdict_reason(reds[0])), _case(reds[0])]
        for reds in causes[:ROWS]
    ]
    further = f"\n\n{len(causes) - ROWS} more causes." if len(causes) > ROWS else ""
    return table(["verdict", "failure", "cases", "outcome", "first case"], rows) + further


def _case(record: Record) -> str:
    return code(f"{label(record.cell)} {record.case} {record.level.value}")
