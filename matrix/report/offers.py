"""What would make more cases run: one line for each thing that a person can add to this machine. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from matrix.verdicts.reason import Kind, Lack
from matrix.verdicts.record import Record, Verdict
from matrix.verdicts.text import one_line


def offers(records: Sequence[Record], command: str, sizes: Mapping[str, int]) -> list[str]:
    """Return the offers of a run, each with its gain after those before it; [] where nothing would help.

    `command` runs megatrix here, `sizes` are the MB of the clones. Cases that lack what no command adds (GPUs, a
    driver) count for none.
    """
    wanting = [record for record in records if record.verdict is Verdict.UNAVAILABLE and _can_be_added(record)]
    needs = [frozenset(map(_remedy, record.outcome.lacks)) for record in wanting]
    given: set[str] = set()
    lines: list[str] = []
    # What the most cases wait for alone comes first.
    for remedies, _ in sorted(Counter(needs).items(), key=lambda item: (len(item[0]), -item[1], sorted(item[0]))):
        for remedy in sorted(remedies - given):
            before = sum(need <= given for need in needs)
            given.add(remedy)
            its = [record for record, need in zip(wanting, needs, strict=True) if remedy in need]
            gain = sum(need <= given for need in needs) - before
            more = f"would run {gain}{' more' if before else ''}" if gain else "is needed as well"
            what = _offer(its, remedy, command, sizes)
            lines.append(f"{len(its)} of {len(records)} cases are unavailable for want of {what} {more}")
    return lines


def _can_be_added(record: Record) -> bool:
    lacks = record.outcome.lacks
    return bool(lacks) and all(lack.kind in (Kind.BASE, Kind.CLONE) for lack in lacks)


def _remedy(lack: Lack) -> str:
    """Return the name of what adds it: one command fetches every clone, and a base has its own."""
    return "clones" if lack.kind is Kind.CLONE else lack.name


def _offer(records: Sequence[Record], remedy: str, command: str, sizes: Mapping[str, int]) -> str:
    if remedy != "clones":
        how = next(lack.text for lack in records[0].outcome.lacks if lack.name == remedy)
        return f"{remedy} ({one_line(how)}), which"
    names = {lack.name for record in records for lack in record.outcome.lacks if lack.kind is Kind.CLONE}
    size = sum(sizes.get(name, 0) for name in names)
    many = f"{len(names)} clone{'s' * (len(names) > 1)}"
    return f"clones: `{command} sources fetch` ({many}, about {size} MB)"
