"""A night in Markdown and as a message: the summary of a job, the text of an issue, a payload for a chat's webhook.

Text that comes from logs stands in code spans and blocks alone: there it is neither markup nor a mention of anybody.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from matrix.report.changes import Changes
from matrix.report.words import MEANING, WORST_FIRST, by, headline, is_red, label, render_chain, why
from matrix.store.night import Night
from matrix.verdicts.record import SILENT, Record
from matrix.verdicts.text import head, one_line

ROWS = 50  # of a table; GitHub takes 1 MiB of a job's summary and 65,536 characters of an issue
EXCEPTION = 40  # lines of an exception in an issue, which holds CAUSES of them
CAUSES = 8
WIDTH = 160  # characters of a text from a log in a table


def job_summary(night: Night, changes: Changes) -> str:
    """Return the night for the page of a CI job: one row for each cause of red, what said nothing, the counts."""
    told = headline(night.records)
    counts = Counter(record.verdict for record in night.records)
    parts = [
        f"## Megatrix: {told.colour}",
        f"{told.text}; {told.beside}. Run {code(night.run)}.",
        _table(_causes(night.records, changes)),
        _silent(night.records),
        "| verdict | cases | means |\n| --- | ---: | --- |\n"
        + "\n".join(f"| {each.value} | {counts[each]} | {MEANING[each]} |" for each in WORST_FIRST if counts[each]),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def issue(night: Night, changes: Changes) -> str:
    """Return an issue about what is newly red, its title on the first line; "" when nothing is.

    Grouped by what happened: seventy cases that fail alike are one row. Without an earlier run, every red is new.
    """
    causes = [reds for reds in _causes(night.records, changes) if _is_new(reds, changes)]
    if not causes:
        return ""
    first, count = causes[0][0], sum(map(len, causes))
    what = f"{first.failure} {first.verdict.value}" if len(causes) == 1 else f"{len(causes)} causes"
    parts = [
        f"# Megatrix: newly red in {count} case{'s' * (count > 1)}: {what}",
        f"Run {code(night.run)}" + (f", compared with {code(changes.since)}." if changes.since else "."),
        _table(causes),
        *map(_cause, causes[:CAUSES]),
    ]
    if len(causes) > CAUSES:
        parts.append(f"{len(causes) - CAUSES} more causes are in the table alone.")
    return "\n\n".join(parts) + "\n"


def webhook(night: Night, changes: Changes) -> dict[str, str]:
    """Return the payload of an incoming webhook (Slack, Mattermost, Rocket.Chat): the night in a few lines."""
    told = headline(night.records)
    lines = [f"Megatrix {told.colour.upper()}: {told.text}; {told.beside} ({one_line(night.run)})"]
    for reds in _causes(night.records, changes)[:CAUSES]:
        new = "NEW " if _is_new(reds, changes) else ""
        lines.append(f"{new}{reds[0].verdict.value} {reds[0].failure} x {len(reds)}: {one_line(why(reds[0]), WIDTH)}")
    # In a chat <...> is a link or a call to everybody.
    return {
        "text": re.sub(r"[<>&]", lambda found: {"<": "&lt;", ">": "&gt;", "&": "&amp;"}[found[0]], "\n".join(lines))
    }


def code(text: str) -> str:
    """Return text as a code span, which also holds within a table."""
    said = one_line(text, WIDTH).replace("|", "¦") or " "
    ticks = "`" * (max(map(len, re.findall("`+", said)), default=0) + 1)
    return f"{ticks} {said} {ticks}" if "`" in said else f"`{said}`"


def block(text: str) -> str:
    """Return text as a code block."""
    ticks = "`" * max(3, max(map(len, re.findall("`+", text)), default=0) + 1)
    return f"{ticks}text\n{text}\n{ticks}"


def _causes(records: Sequence[Record], changes: Changes) -> list[list[Record]]:
    """Return the reds grouped by what happened, new ones first, then by how many they are.

    Where a signature says what it is, rank, line and text may differ; without one the text has to be the same.
    """
    causes = by(
        lambda red: (red.failure, red.verdict, red.signature, red.other, red.signature or red.other or why(red)),
        filter(is_red, records),
    ).values()
    return sorted(causes, key=lambda reds: (not _is_new(reds, changes), -len(reds)))


def _is_new(reds: Sequence[Record], changes: Changes) -> bool:
    return not changes.since or any(red.key in changes.newly_red for red in reds)


def _table(causes: Sequence[Sequence[Record]]) -> str:
    if not causes:
        return ""
    rows = [
        f"| {reds[0].verdict.value} | {code(reds[0].failure)} | {len(reds)} | {code(why(reds[0]))} | "
        f"{code(f'{label(reds[0].cell)} {reds[0].case} {reds[0].level.value}')} |"
        for reds in causes[:ROWS]
    ]
    more = f"\n\n{len(causes) - ROWS} more causes." if len(causes) > ROWS else ""
    return "\n".join(["| verdict | failure | cases | what happened | the first |", "| --- " * 5 + "|", *rows]) + more


def _cause(reds: Sequence[Record]) -> str:
    first = reds[0]
    listed = [f"- {code(f'{label(red.cell)} {red.case} {red.level.value}')}" for red in reds[:ROWS]]
    listed += [f"- and {len(reds) - ROWS} more"] * (len(reds) > ROWS)
    resolved = ", ".join(f"{name} {version}" for name, version in first.resolved.items())
    said = head(render_chain(first.outcome.chain), EXCEPTION) if first.outcome.chain else ""
    parts = [
        f"### {first.verdict.value}: {first.failure}",
        f"{MEANING[first.verdict].capitalize()}. Expected: {first.expectation.value}.",
        f"Run it again:\n\n{block(one_line(first.reproduce, 2_000))}",
        f"What happened in the first:\n\n{block(said)}" if said else "",
        f"Packages: {code(resolved)}" if resolved else "",
        f"<details><summary>{len(reds)} cases</summary>\n\n" + "\n".join(listed) + "\n\n</details>",
    ]
    return "\n\n".join(filter(None, parts))


def _silent(records: Sequence[Record]) -> str:
    groups = by(lambda record: (record.verdict, why(record)), (one for one in records if one.verdict in SILENT))
    ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
    return "\n".join(f"- {verdict.value} x {len(members)}: {code(why)}" for (verdict, why), members in ordered[:ROWS])
