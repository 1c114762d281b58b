"""The known failures of a stack, for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from matrix.catalog.failure import Expectation
from matrix.check.compat import HARDWARE, FailureInStack
from matrix.report.terminal import RED, Part, Prose, table, text


def render(found: Sequence[FailureInStack]) -> Iterator[Part]:
    """Yield the failures that are expected to break, then the ids of the others."""
    broken = [one for one in found if one.expectation is Expectation.BROKEN]
    for one in broken:
        runs = f"run on this machine at level {', '.join(one.seen)}" if one.seen else "never run on this machine"
        yield table([(text(("BREAKS", RED)), f"{one.failure.id}: {one.failure.title}")])
        yield Prose(f"{one.reason}; {runs}", 2)
        workarounds = (
            f"{each.text} [{each.verified}]" if each.verified else each.text for each in one.failure.workaround
        )
        yield table([("fix:", one.fix), *(("workaround:", each) for each in workarounds)], indent=2)
        yield Prose(", ".join(one.failure.references), 2)
    if not broken:
        yield Prose("no failure of the catalog is known to occur in this stack")
    for kind, head in ((Expectation.WORKS, "known to work:"), (Expectation.UNKNOWN, "not known:")):
        ruled = [one for one in found if one.expectation is kind]
        if ruled:
            yield table([(head, ", ".join(one.failure.id for one in ruled))])
        # Where the rule depends on hardware, "works" alone would mislead: print the reason.
        yield from (
            table([(f"{one.failure.id}:", one.reason)], indent=2) for one in ruled if set(one.axes) & set(HARDWARE)
        )
