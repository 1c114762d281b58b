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
    addable = {Kind.BASE, Kind.CLONE}
    waiting = [
        (record, frozenset(map(_remedy, record.outcome.lacks)))
        for record in records
        if record.verdict is Verdict.UNAVAILABLE and record.outcome.lacks
        if {lack.kind for lack in record.outcome.lacks} <= addable
    ]
    offered: set[str] = set()
    lines: list[str] = []
    # What the most cases wait for alone comes first.
    counts = Counter(needs for _, needs in waiting)
    for remedy in dict.fromkeys(
        remedy
        for needs in sorted(counts, key=lambda needs: (len(needs), -counts[needs], sorted(needs)))
        for remedy in sorted(needs)
    ):
        runnable = sum(needs <= offered for _, needs in waiting)
        offered.add(remedy)
        gain = sum(needs <= offered for _, needs in waiting) - runnable
        cases = [record for record, needs in waiting if remedy in needs]
        effect = f"would run {gain}{' more' if runnable else ''}" if gain else "is needed as well"
        offer = _offer(cases, remedy, command, sizes)
        lines.append(f"{len(cases)} of {len(records)} cases are unavailable for want of {offer} {effect}")
    return lines


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
