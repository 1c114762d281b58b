"""An entry broken on purpose: with its expectations swapped, every case must be red, in both directions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from matrix.catalog.failure import Expectation
from matrix.errors import MatrixError
from matrix.planning.planned import Planned
from matrix.verdicts.record import Record, Verdict

OTHER: Final = {Expectation.BROKEN: Expectation.WORKS, Expectation.WORKS: Expectation.BROKEN}
# What a swapped expectation must end in: what is broken regresses where it is said to work, and the other way about.
WANTED: Final = {Expectation.WORKS: Verdict.REGRESSED, Expectation.BROKEN: Verdict.VANISHED}


def swapped(night: Iterable[Planned], failure: str) -> list[Planned]:
    """Return the night's cases of a failure, each expected to be what it is not.

    Raises MatrixError where they do not include both a case that breaks and one that works.
    """
    cases = [item for item in night if item.failure == failure and item.expectation in OTHER]
    missing = OTHER.keys() - {item.expectation for item in cases}
    if missing:
        raise MatrixError(
            "an entry is broken in both directions",
            got=f"no case of {failure} in the night is expected: {', '.join(sorted(one.value for one in missing))}",
            expected="at least one case that breaks and one that works",
        )
    return [replace(item, expectation=OTHER[item.expectation]) for item in cases]


def outcome(records: Sequence[Record]) -> tuple[bool, str]:
    """Return whether both red verdicts appeared and no other but `unavailable`, and that in a line."""
    wrong = [record for record in records if record.verdict not in (WANTED[record.expectation], Verdict.UNAVAILABLE)]
    counts = Counter(record.verdict for record in records)
    both = all(counts[verdict] for verdict in WANTED.values())
    text = ", ".join(f"{count} {verdict.value}" for verdict, count in sorted(counts.items()))
    if both and not wrong:
        return True, f"broken on purpose, red in both directions: {text}"
    why = f"{len(wrong)} cases came out otherwise" if wrong else "not both regressed and vanished appeared"
    return False, f"broken on purpose, and {why}: {text}"
