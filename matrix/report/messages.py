"""A night as a message: the summary of a CI job, the text of an issue, and the payload of a chat webhook.

Text from logs appears only in code spans and code blocks, where it is neither markup nor a mention.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from matrix.report.changes import Changes
from matrix.report.escaping import WIDTH, block, chat_text, code, json_text
from matrix.report.findings.markdown import table
from matrix.report.words import (
    MEANING,
    group_by,
    headline,
    is_red,
    label,
    render_chain,
    silent,
    verdict_counts,
    verdict_reason,
)
from matrix.store.stored_run import Night
from matrix.verdicts.record import Record
from matrix.verdicts.text import head, one_line

ROWS: Final = 50  # of a table; GitHub accepts 1 MiB for a job's summary and 65,536 characters for an issue
EXCEPTION: Final = 40  # lines of an exception in an issue
CAUSES: Final = 8  # with details in an issue, or listed in a webhook


def job_summary(night: Night, changes: Changes) -> str:
    """Return the night for the page of a CI job: a row per cause of red cases, missing results, counts."""
    summary = headline(night.records, night.missing)
    largest = silent(night.records)[:ROWS]
    parts = [
        f"## Megatrix: {summary.colour}",
        f"{summary.text}; {summary.sources}. Run {code(night.run)}.",
        _table(_causes(night.records, changes)),
        "\n".join(f"- {verdict.value} x {len(members)}: {code(reason)}" for (verdict, reason), members in largest),
        "| verdict | cases | meaning |\n| --- | ---: | --- |\n"
        + "\n".join(
            f"| {verdict.value} | {count} | {MEANING[verdict]} |"
            for verdict, count in verdict_counts(night.records).items()
        ),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def issue(night: Night, changes: Changes) -> str:
    """Return an issue about the newly red cases, its title on the first line; "" if there are none.

    Cases are grouped by cause: seventy that fail alike are one row. Without an earlier run every red case is new.
    """
    causes = [reds for reds in _causes(night.records, changes) if _is_new(reds, changes)]
    if not causes:
        return ""
    red, count = causes[0][0], sum(map(len, causes))
    subject = f"{red.failure} {red.verdict.value}" if len(causes) == 1 else f"{len(causes)} causes"
    parts = [
        f"# Megatrix: newly red in {count} case{'s' * (count > 1)}: {subject}",
        f"Run {code(night.run)}" + (f", compared with {code(changes.since)}." if changes.since else "."),
        _table(causes),
        *map(_cause, causes[:CAUSES]),
    ]
    if len(causes) > CAUSES:
        parts.append(f"{len(causes) - CAUSES} more causes are only in the table.")
    return "\n\n".join(parts) + "\n"


def webhook(night: Night, changes: Changes) -> str:
    """Return the JSON of an incoming webhook (Slack, Mattermost, Rocket.Chat): the night in a few lines."""
    summary = headline(night.records, night.missing)
    lines = [f"Megatrix {summary.colour.upper()}: {summary.text}; {summary.sources} ({one_line(night.run)})"]
    for reds in _causes(night.records, changes)[:CAUSES]:
        new = "NEW " if _is_new(reds, changes) else ""
        reason = one_line(verdict_reason(reds[0]), WIDTH)
        lines.append(f"{new}{reds[0].verdict.value} {reds[0].failure} x {len(reds)}: {reason}")
    return json_text({"text": chat_text("\n".join(lines))}) + "\n"


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


def _cause(reds: Sequence[Record]) -> str:
    red = reds[0]
    cases = [f"- {_case(record)}" for record in reds[:ROWS]] + [f"- and {len(reds) - ROWS} more"] * (len(reds) > ROWS)
    resolved = ", ".join(f"{name} {version}" for name, version in red.resolved.items())
    exceptions = head(render_chain(red.outcome.chain), EXCEPTION) if red.outcome.chain else ""
    parts = [
        f"### {red.verdict.value}: {red.failure}",
        f"{MEANING[red.verdict].capitalize()}. Expected: {red.expectation.value}.",
        f"Reproduce:\n\n{block(one_line(red.reproduce, 2_000))}",
        f"Exceptions of the first case:\n\n{block(exceptions)}" if exceptions else "",
        f"Packages: {code(resolved)}" if resolved else "",
        f"<details><summary>{len(reds)} cases</summary>\n\n" + "\n".join(cases) + "\n\n</details>",
    ]
    return "\n\n".join(filter(None, parts))
