"""A run in sum and the verdicts that changed: for the terminal, a CI job, and as a page of level gpu to be committed.

In Markdown, text from logs appears only in code spans and code blocks, where it is neither markup nor a mention.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.stack import MCORE
from matrix.ground.errors import counted
from matrix.ground.verdicts.record import MACHINE, SILENT, Record, Verdict
from matrix.ground.verdicts.text import one_line, visible
from matrix.ground.verdicts.trend import PastResult
from matrix.prove.store.stored_run import Night
from matrix.show.findings import markdown_table
from matrix.show.terminal import RED, Alternative, Part, Prose, Styled, code, table, text
from matrix.show.words import (
    MEANING,
    NONE_MISSING,
    WORST_FIRST,
    beside_mcore,
    causes,
    group_by,
    headline,
    is_red,
    label,
    row_order,
    silent,
    verdict_counts,
    verdict_reason,
)


@dataclass(frozen=True)
class Change:
    """Cases with the same change of verdict. `before` is None for cases without a verdict in any earlier run."""

    before: Verdict | None
    after: Verdict
    records: tuple[Record, ...]

    @property
    def newly_red(self) -> bool:
        """Return whether the cases are red now and were not red, or had no verdict, before."""
        return self.after.colour == "red" and (self.before is None or self.before.colour != "red")

    @property
    def urgency(self) -> tuple[int, int, int]:
        """Return a sort key: newly red, red with another verdict, no longer red, other changes, first verdict."""
        was_red = self.before is not None and self.before.colour == "red"
        kinds = (self.newly_red, self.after.colour == "red", was_red, self.before is not None, True)
        return kinds.index(True), WORST_FIRST.index(self.after), WORST_FIRST.index(self.before) if self.before else -1


@dataclass(frozen=True)
class Changes:
    """All changes, newly red first. `since` is the latest earlier run, "" if there is none.

    `dropped`: keys with a verdict in the latest earlier run that this run does not plan, so that a smaller plan is
    visible.
    """

    since: str
    groups: tuple[Change, ...]
    dropped: tuple[str, ...]

    @property
    def newly_red(self) -> frozenset[str]:
        """Keys of cases that are red now and were not red, or had no verdict, before."""
        return frozenset(record.key for change in self.groups if change.newly_red for record in change.records)


def changes(records: Sequence[Record], previous: Mapping[str, PastResult]) -> Changes:
    """Compare records with the last earlier verdict of each case."""
    if not previous:
        return Changes("", (), ())
    groups: dict[tuple[Verdict | None, Verdict], list[Record]] = {}
    for record in records:
        earlier = previous.get(record.key)
        verdict = earlier.verdict if earlier else None
        if (verdict or Verdict.NOT_REACHED) is not record.verdict:  # a case that was never reached has not changed
            groups.setdefault((verdict, record.verdict), []).append(record)
    latest = max(previous.values(), key=lambda earlier: earlier.number)
    keys = {record.key for record in records}
    return Changes(
        latest.run,
        tuple(sorted((Change(*step, tuple(groups[step])) for step in groups), key=lambda change: change.urgency)),
        tuple(key for key, earlier in previous.items() if earlier.number == latest.number and key not in keys),
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
        _table_of_causes(_causes(night.records, changes)),
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


def _table_of_causes(causes: Sequence[Sequence[Record]]) -> str:
    rows = [
        [reds[0].verdict.value, code(reds[0].failure), str(len(reds)), code(verdict_reason(reds[0])), _case(reds[0])]
        for reds in causes[:ROWS]
    ]
    further = f"\n\n{len(causes) - ROWS} more causes." if len(causes) > ROWS else ""
    return markdown_table(["verdict", "failure", "cases", "outcome", "first case"], rows) + further


def _case(record: Record) -> str:
    return code(f"{label(record.cell)} {record.case} {record.level.value}")


SHARING: Final = ("ranks per GPU", "NCCL transport", "NCCL CTAs", "MPS")  # of a record whose ranks share a GPU
FACTS: Final = ("torch", "transformer-engine", "NCCL", "user-mode driver", "NVLink", "backend", *SHARING)


def name(night: Night) -> str:
    """Return the name of the file, with the GPUs of its machines: 2026-01-31-8-x-nvidia-h100.md."""
    cards = dict.fromkeys(machine.partition(", SM")[0] for machine in _by_machine(night.records))
    return f"{night.began[:10]}-{re.sub(r'[^a-z0-9]+', '-', ' '.join(cards).lower()).strip('-') or 'nothing-ran'}.md"


def page(night: Night) -> str:
    """Return the page: the machines, the packages of each base, the verdicts of each failure, the summary of the run.

    A run that was resumed on another machine has several; each row names those of its cases by their numbers.
    """
    machines = _by_machine(night.records)
    numbers = {record.key: number for number, ran in enumerate(machines.values(), 1) for record in ran}
    failures = []
    for failure, records in group_by(lambda record: record.failure, night.records).items():
        counts = Counter(record.verdict for record in records)
        failures.append([code(failure), _of(numbers, records), *(str(counts[word] or "") for word in WORST_FIRST)])
    parts = [
        f"# Level gpu, {night.began[:10]}",
        "\n".join(f"{number}. {_machine(*machine)}" for number, machine in enumerate(machines.items(), 1)),
        f"{len(numbers)} of {len(night.records)} cases ran.",
        markdown_table(["base", "machine", "cases", *FACTS], bases(numbers, night.records)),
        markdown_table(["failure", "machine", *(verdict.value for verdict in WORST_FIRST)], failures),
        job_summary(night, changes(night.records, {})),
    ]
    return "\n\n".join(filter(None, parts))


def _by_machine(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Return the cases that ran by the machine of their records."""
    ran = (record for record in records if record.verdict not in SILENT)
    return group_by(lambda record: record.resolved.get(MACHINE, "unknown"), ran)


def _machine(name: str, ran: Sequence[Record]) -> str:
    """Return the line of a machine: its cases, and the minutes in which one of them ran."""
    busy = end = 0.0
    for began, seconds in sorted((_seconds(record.started), record.outcome.seconds) for record in ran):
        busy += max(began + seconds - max(began, end), 0.0)
        end = max(end, began + seconds)
    return f"{name}: {counted(len(ran), 'case')} in {counted(busy / 60, 'minute')}"


def _seconds(time: str) -> float:
    """Return a time of a record in seconds; before Python 3.11 fromisoformat refuses "Z"."""
    return datetime.fromisoformat(time.replace("Z", "+00:00")).timestamp()


def bases(numbers: Mapping[str, int], records: Sequence[Record]) -> list[list[str]]:
    """Return a row for each base on each machine (`numbers`, by case key): its cases, and the values of FACTS."""
    ran, rows = (record for record in records if record.key in numbers), []
    for (base, number), members in group_by(lambda record: (record.cell.base, numbers[record.key]), ran).items():
        values = (dict.fromkeys(run.resolved[fact] for run in members if fact in run.resolved) for fact in FACTS)
        rows.append([code(base), str(number), str(len(members)), *(", ".join(value) or "-" for value in values)])
    return rows


def _of(numbers: Mapping[str, int], records: Sequence[Record]) -> str:
    """Return the numbers of the machines on which these cases ran."""
    return ", ".join(map(str, sorted({numbers[record.key] for record in records if record.key in numbers}))) or "-"


DRIVERS = ("host driver", "user-mode driver")  # in Record.resolved; not used below level gpu
SHARED: Final = (*SHARING[:1], "backend", "NCCL", *SHARING[1:])  # no GPU of its own for each rank
# Styles of rich for the colours of verdicts and of the night.
STYLES: Final = {
    "green": "green",
    "red": RED,
    "learned": "cyan",
    "unavailable": "yellow",
    "not-reached": "magenta",
    "incomplete": "yellow",
    "": "",
}


def summary(records: Sequence[Record], missing: Mapping[str, str] = NONE_MISSING) -> Iterator[Part]:
    """Yield the summary: red cases with reason and command, tables, cases that were not reached, counts, headline.

    The headline comes last, where a terminal shows it without scrolling.
    """
    tables = group_by(
        lambda record: (record.failure, record.level), sorted(records, key=lambda each: row_order(each.cell))
    )
    blocks: tuple[list[Part], ...] = (
        *_reds(records),
        *(_table(members) for _, members in sorted(tables.items())),
        without_result(records),
        [Prose(facts, 2) for names in (DRIVERS, SHARED) for facts in _facts(records, names)],
    )
    for block in filter(None, blocks):
        yield from (*block, "")
    night = headline(records, missing)
    if records:
        yield text(*_counts(records))
    yield text((night.colour.upper(), STYLES[night.colour]), f": {night.text}; {night.sources}")


def without_result(records: Sequence[Record]) -> list[Part]:
    """Return a line for each reason for which cases have no result."""
    return [
        table([(text(styled(verdict), f" x {len(members)}:"), reason)])
        for (verdict, reason), members in silent(records)
    ]


def _reds(records: Sequence[Record]) -> Iterator[list[Part]]:
    """Yield a block per cause: the cause, then each of its cases with the command that reproduces it."""
    for (failure, verdict, cause), members in causes(records).items():
        count = f" x {len(members)}" if len(members) > 1 else ""
        block: list[Part] = [
            text((verdict.value.upper(), RED), f" {failure}{count}"),
            Prose(cause, 2),
            Prose(f"({MEANING[verdict]})", 2),
        ]
        for red in members:
            block.append(f"  {label(red.cell)} {red.case} {red.level.value}")
            block += [table([("note:", one_line(note))], indent=4) for note in red.notes]
            block += [Prose(drivers, 4) for drivers in _facts([red], DRIVERS)]
            block.append(f"    {' '.join(visible(red.reproduce).split())}")
        yield block


def styled(verdict: Verdict) -> tuple[str, str]:
    """Return a verdict's name and its style."""
    return verdict.value, STYLES[verdict.colour]


def _facts(records: Sequence[Record], names: Sequence[str]) -> list[str]:
    """Return these facts of the cases at level gpu that have the first one, or any driver: a line a combination."""
    texts = (
        ", ".join(f"{name} {record.resolved[name]}" for name in names if name in record.resolved)
        for record in records
        if record.level is Level.GPU and (names is DRIVERS or names[0] in record.resolved)
    )
    counts = Counter(filter(None, texts))
    return [f"{one_line(facts)}{f' x {count}' if len(records) > 1 else ''}" for facts, count in counts.items()]


def _table(records: Sequence[Record]) -> list[Part]:
    """Return the table of one failure at one level: cells as rows; cases as columns, or counts if they don't fit.

    Rows that differ only in the Megatron version are merged. Cells without any result are omitted; the summary lists
    them.
    """
    cases = list(dict.fromkeys(record.case for record in records))
    spans: list[list[list[Record]]] = []  # per row of the table: the cells merged into it
    for members in group_by(lambda record: record.cell.id, records).values():
        if all(record.verdict in SILENT for record in members):
            continue
        if spans and _row_of(spans[-1][-1]) == _row_of(members):
            spans[-1].append(members)
        else:
            spans.append([members])
    if not spans:
        return []
    rows: list[list[str | Styled]] = []
    narrow: list[Part] = []
    for span in spans:
        oldest, newest = span[0][0].cell, span[-1][0].cell
        name = (
            label(oldest)
            if len(span) == 1
            else f"{label(oldest, f'{oldest.stack[MCORE]}..{newest.stack[MCORE]}')} ({len(span)})"
        )
        members = [record for members in span for record in members]
        verdicts = {record.case: styled(record.verdict) for record in members}
        rows.append([name, *(text(verdicts.get(case, "-")) for case in cases)])
        narrow += [f"  {name}", text("    ", *_counts(members))]
    title = f"{records[0].failure}, level {records[0].level.value}"
    return [title, Alternative(table(rows, ["", *cases], indent=2, gap=2), tuple(narrow))]


def _row_of(records: Sequence[Record]) -> tuple[object, ...]:
    """Return what the row of a cell has in common with those that are merged into it."""
    cell = records[0].cell
    return cell.base, beside_mcore(cell), [(record.case, record.verdict) for record in records]


def _counts(records: Sequence[Record]) -> Iterator[str | tuple[str, str]]:
    """Yield the number of cases of each verdict, worst first."""
    for number, (verdict, count) in enumerate(verdict_counts(records).items()):
        yield f"{', ' * bool(number)}{count} "
        yield styled(verdict)
