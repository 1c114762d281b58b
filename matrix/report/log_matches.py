"""The known failures found in a log, as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from matrix.verdicts.match import LogFault, Reading, Sighting, Similar
from matrix.verdicts.text import one_line

SHOWN = 5  # faults listed of each kind


def render(reading: Reading) -> str:
    """Return the report; texts from the log are escaped and their secrets masked."""
    lines = [line for sighting in reading.known for line in _known(sighting)]
    if not reading.known:
        lines.append(f"nothing that the catalog knows is in these {reading.lines:,} lines")
    lines += _listed("NOT IN THE CATALOG, further errors:" if reading.known else "errors in this log:", reading.unknown)
    lines += _similar(reading.similar)
    lines += _listed("consequences of another rank's failure, not causes:", reading.follows)
    if reading.root_rank is not None:
        lines.append(f"torchrun reports rank {reading.root_rank} as the first failed rank")
    if reading.follows and not reading.known and not reading.unknown:
        rank = "another rank" if reading.root_rank is None else f"rank {reading.root_rank}"
        lines.append(f"the cause is not in this log: look into the one of {rank}")
    return "\n".join(lines)


def _known(sighting: Sighting) -> Iterator[str]:
    failure = sighting.failure
    prefix = "" if sighting.certain else "LIKELY "
    count = f", {sighting.times} times in total" if sighting.times > 1 else ""
    yield f"{prefix}{failure.id}: {failure.title}"
    yield f"  line {sighting.fault.line:,}: {one_line(sighting.fault.what)}{count}"
    lacks = f": the log lacks {sighting.lacks}" if sighting.lacks else ""
    yield f"  by signature {sighting.signature.name}, {'certain' if sighting.certain else 'likely'}{lacks}"
    for rule in failure.affected:
        yield f"  breaks where: {rule} ({rule.reason})"
    if failure.fix:
        yield f"  fix: {' '.join(failure.fix.split())}"
    for workaround in failure.workaround:
        yield f"  workaround: {workaround.text} [{workaround.verified or 'not verified'}]"
    yield f"  {', '.join(failure.references)}"
    yield ""


def _similar(similar: Sequence[Similar]) -> Iterator[str]:
    if similar:
        yield "similar, not the same:"
    for one in similar[:SHOWN]:
        yield f"  {one.failure.id}: {one.failure.title}"
        yield f"    line {one.fault.line:,}: {one_line(one.differs)}"


def _listed(head: str, faults: Sequence[LogFault]) -> list[str]:
    if not faults:
        return []
    more = [f"  and {len(faults) - SHOWN} more"] if len(faults) > SHOWN else []
    return [head, *(f"  line {fault.line:,}: {one_line(fault.what)}" for fault in faults[:SHOWN]), *more]
