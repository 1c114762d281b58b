"""The unavailable cases of a run: what they need, and what a person can add to this machine. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from matrix.report.words import group_by, verdict_reason
from matrix.verdicts.reason import Kind, Lack
from matrix.verdicts.record import Record, Verdict
from matrix.verdicts.text import one_line

ADDABLE: Final = {Kind.BASE, Kind.CLONE}  # by a command, unlike GPUs or a driver
CLONES: Final = "clones"


def offers(records: Sequence[Record], total: int, command: str, sizes: Mapping[str, int]) -> list[str]:
    """Return the lines about the unavailable of these records, of `total` cases; [] if there are none.

    A case counts in one of them, so that the counts add up. `command` runs megatrix here, `sizes` are the MB of the
    clones.
    """
    unavailable = [record for record in records if record.verdict is Verdict.UNAVAILABLE]
    if not unavailable:
        return []
    lines = [f"{len(unavailable)} of {total} cases {'is' if len(unavailable) == 1 else 'are'} unavailable:"]
    lacks = dict[str, list[Lack]]()  # by what a command adds
    groups = group_by(_needs, unavailable)
    for needs, cases in sorted(groups.items(), key=lambda group: (len(group[0]), -len(group[1]), group[0])):
        if needs:
            lines.append(f"  {len(cases)} need{'s' if len(cases) == 1 else ''} {' and '.join(needs)}")
            for lack in (lack for case in cases for lack in case.outcome.lacks):
                lacks.setdefault(_remedy(lack), []).append(lack)
    others = group_by(_reason, groups.get((), ()))
    lines += [f"  {len(cases)}: {reason}" for reason, cases in others.items()]
    for remedy, missing in lacks.items():
        names = {lack.name for lack in missing}
        size = sum(sizes.get(name, 0) for name in names)
        fetch = f"`{command} sources fetch` ({len(names)} clone{'s' * (len(names) > 1)}, about {size} MB)"
        lines.append(f"for {remedy}: {fetch if remedy == CLONES else one_line(missing[0].text)}")
    return lines


def _needs(record: Record) -> tuple[str, ...]:
    """Return what makes a case run, () unless commands add all that it lacks."""
    lacks = record.outcome.lacks
    return tuple(sorted({*map(_remedy, lacks)})) if {lack.kind for lack in lacks} <= ADDABLE else ()


def _reason(record: Record) -> str:
    lacks = (_remedy(lack) if lack.kind in ADDABLE else one_line(lack.text) for lack in record.outcome.lacks)
    return "; ".join(dict.fromkeys(lacks)) or verdict_reason(record)


def _remedy(lack: Lack) -> str:
    """Return the name of what adds it: one command fetches every clone, and a base has its own."""
    return CLONES if lack.kind is Kind.CLONE else lack.name
