"""What a log shows, in words for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from matrix.verdicts.match import LogFault, Reading, Sighting
from matrix.verdicts.text import one_line

SHOWN = 5  # faults of a kind


def render(reading: Reading) -> str:
    """Return the answer; every text of the log in it is harmless and masked."""
    lines = [line for sighting in reading.known for line in _known(sighting)]
    if not reading.known:
        lines.append(f"nothing that the catalog knows is in these {reading.lines:,} lines")
    lines += _listed("NOT KNOWN, and it went wrong here too:" if reading.known else "what went wrong:", reading.unknown)
    lines += _listed("follows from a failure of another rank, and is no cause:", reading.follows)
    if reading.root_rank is not None:
        lines.append(f"torchrun names rank {reading.root_rank} as the first that failed")
    if reading.follows and not reading.known and not reading.unknown:
        whose = "another rank" if reading.root_rank is None else f"rank {reading.root_rank}"
        lines.append(f"the cause is not in this log: look into the one of {whose}")
    return "\n".join(lines)


def _known(sighting: Sighting) -> Iterator[str]:
    failure = sighting.failure
    how = "" if sighting.certain else "LOOKS LIKE "
    often = f", {sighting.times} times in all" if sighting.times > 1 else ""
    yield f"{how}{failure.id}: {failure.title}"
    yield f"  line {sighting.fault.line:,}: {one_line(sighting.fault.what)}{often}"
    yield f"  by signature {sighting.signature.name}, {'certain' if sighting.certain else 'likely'}"
    for rule in failure.affected:
        yield f"  breaks where: {rule} ({rule.reason})"
    if failure.fix:
        yield f"  fix: {' '.join(failure.fix.split())}"
    for way in failure.workaround:
        yield f"  way round: {way.text} [{way.verified or 'not verified here'}]"
    yield f"  {', '.join(failure.references)}"
    yield ""


def _listed(head: str, faults: Sequence[LogFault]) -> list[str]:
    if not faults:
        return []
    more = [f"  and {len(faults) - SHOWN} more"] if len(faults) > SHOWN else []
    return [head, *(f"  line {fault.line:,}: {one_line(fault.what)}" for fault in faults[:SHOWN]), *more]
