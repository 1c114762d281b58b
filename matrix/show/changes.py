"""The verdicts that changed since the earlier runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matrix.ground.verdicts.record import Record, Verdict
from matrix.ground.verdicts.trend import PastResult
from matrix.show.words import WORST_FIRST


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
