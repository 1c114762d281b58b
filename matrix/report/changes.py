"""What changed since the earlier runs: the first thing a person wants to know in the morning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matrix.report.words import WORST_FIRST
from matrix.store.history import Earlier
from matrix.verdicts.record import Record, Verdict


@dataclass(frozen=True)
class Change:
    """Cases that went the same way. `before` is None for cases that no earlier run has a word on."""

    before: Verdict | None
    after: Verdict
    records: tuple[Record, ...]


@dataclass(frozen=True)
class Changes:
    """What is different, newly red first. `since` is the latest earlier run, "" if there is none.

    `dropped`: keys that the latest earlier run had a verdict on and this one does not plan: a plan must not shrink
    unseen.
    """

    since: str
    groups: tuple[Change, ...]
    dropped: tuple[str, ...]

    @property
    def newly_red(self) -> frozenset[str]:
        """Keys of cases that are red and had another colour, or no verdict, before."""
        return frozenset(record.key for change in self.groups if _newly_red(change) for record in change.records)


def changes(records: Sequence[Record], previous: Mapping[str, Earlier]) -> Changes:
    """Compare records with the last verdict that each case had before."""
    if not previous:
        return Changes("", (), ())
    groups: dict[tuple[Verdict | None, Verdict], list[Record]] = {}
    for record in records:
        earlier = previous.get(record.key)
        before = earlier.verdict if earlier else None
        if (before or Verdict.NOT_REACHED) is not record.verdict:  # never reached until now is nothing new
            groups.setdefault((before, record.verdict), []).append(record)
    latest = max(previous.values(), key=lambda earlier: earlier.number)
    now = {record.key for record in records}
    return Changes(
        latest.run,
        tuple(Change(*way, tuple(groups[way])) for way in sorted(groups, key=_urgency)),
        tuple(key for key, earlier in previous.items() if earlier.number == latest.number and key not in now),
    )


def _newly_red(change: Change) -> bool:
    return change.after.colour == "red" and (change.before is None or change.before.colour != "red")


def _urgency(way: tuple[Verdict | None, Verdict]) -> tuple[int, int, int]:
    before, after = way
    was_red, red = before is not None and before.colour == "red", after.colour == "red"
    # Newly red, differently red, no longer red, otherwise different, first verdict.
    rank = (red and not was_red, red, was_red, before is not None, True).index(True)
    return rank, WORST_FIRST.index(after), WORST_FIRST.index(before) if before else -1
