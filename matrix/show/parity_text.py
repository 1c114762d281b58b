"""What `megatrix parity` prints: the verdict first, then each deviation with a line that shows it again."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from matrix.kit.parity.deviations import Deviation
from matrix.kit.parity.factors import Point
from matrix.prove.parity.campaigns import CoreResult, first_and_last
from matrix.prove.parity.points import DEVIATES, EQUAL, Cause, Certainty, PointResult
from matrix.show.terminal import Part, Prose

VERDICTS = {DEVIATES: "DEVIATES", EQUAL: "EQUAL"}
MOST = 3  # deviations of a point that are printed
ORDER = (Certainty.CONFIRMED, Certainty.KNOWN, Certainty.VANISHED, Certainty.SUSPECTED, Certainty.UNDECIDED)


def command_line(core: str, comparison: PointResult, environ: Mapping[str, str]) -> str:
    """Return the command that makes a comparison again."""
    command, layout = environ.get("MEGATRIX_COMMAND", "megatrix"), shlex.quote(str(comparison.point))
    return f"{command} parity --mcore {shlex.quote(core)} --layout {layout} --seed {comparison.seed}"


def search_lines(seed: int, results: Sequence[CoreResult], environ: Mapping[str, str]) -> Iterator[Part]:
    """Yield the text of a search."""
    causes = [(result, cause) for result in results for cause in result.causes]
    breaks = [cause for _, cause in causes if cause.deviates and cause.certainty.is_break]
    judged, equal = sum(result.judged for result in results), sum(result.equal for result in results)
    verdict = (
        f"DEVIATES: {len(breaks)} cause{'s' * (len(breaks) != 1)}"
        if breaks
        else "EQUAL"
        if equal
        else "NOTHING DECIDED"
    )
    yield f"{verdict} ({equal} layouts equal, {judged} comparisons, {len(results)} cores, seed {seed})"
    for certainty in ORDER:
        for result, cause in causes:
            if cause.certainty is certainty:
                yield ""
                title = f"{certainty.value} as {cause.entry}" if cause.entry else certainty.value
                yield f"megatron-core {result.core}  {title}: {cause.point}"
                yield from _details(result, cause, environ)
    yield ""
    for result in results:
        refused = sum(cause.certainty is Certainty.REFUSED for cause in result.causes)
        yield Prose(
            f"megatron-core {result.core} on {result.base}: {result.equal} layouts equal, {refused} combinations "
            f"refused by upstream, {result.uncovered} pairs not covered, {result.seconds:.0f} s"
            + (f": {result.problem}" if result.problem else "")
        )


def _details(result: CoreResult, cause: Cause, environ: Mapping[str, str]) -> Iterator[Part]:
    yield from (Prose(str(deviation), 2) for deviation in cause.comparison.deviations[:MOST])
    if cause.comparison.text:
        yield Prose(f"{cause.comparison.outcome}: {cause.comparison.text}", 2)
    if arguments := cause.point.arguments():
        yield Prose(f"on the command line of Megatron-LM: {shlex.join(arguments)}", 2)
    yield f"  {command_line(result.core, cause.comparison, environ)}"


def layout_lines(
    points: Sequence[Point], seed: int, results: Sequence[CoreResult], environ: Mapping[str, str]
) -> Iterator[Part]:
    """Yield the text of some layouts in some cores."""
    for point in points:
        rows = [(result.core, row) for result in results for row in result.asked if row.point == point]
        outcomes = {row.outcome for _, row in rows}
        verdict = next((word for outcome, word in VERDICTS.items() if outcome in outcomes), "NOTHING DECIDED")
        spans = first_and_last(point, results)
        yield f"{verdict}{f' in {spans}' * bool(spans)}: {point} (seed {seed})"
        for core, row in rows:
            yield f"  megatron-core {core}: {row.outcome}, {row.largest:.2g} at most"
            yield from (Prose(str(deviation), 4) for deviation in row.deviations[:MOST])
            if row.text:
                yield Prose(row.text, 4)
            if row.outcome == DEVIATES:
                yield f"    {command_line(core, row, environ)}"
    yield from (Prose(f"megatron-core {result.core}: {result.problem}") for result in results if result.problem)


def core_json(result: CoreResult, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the result of one core as plain values."""
    causes = [
        {
            "certainty": cause.certainty.value,
            "entry": cause.entry,
            "layout": str(cause.point),
            "ranks": cause.point.ranks,
            "arguments": cause.point.arguments(),
            "outcome": cause.comparison.outcome,
            "text": cause.comparison.text,
            "deviations": list(map(deviation_json, cause.comparison.deviations)),
            "reproduce": command_line(result.core, cause.comparison, environ),
        }
        for cause in result.causes
    ]
    asked = [
        {
            "layout": str(comparison.point),
            "outcome": comparison.outcome,
            "text": comparison.text,
            "deviations": list(map(deviation_json, comparison.deviations)),
            "reproduce": command_line(result.core, comparison, environ),
        }
        for comparison in result.asked
    ]
    counts = {
        name: getattr(result, name) for name in ("core", "base", "judged", "equal", "uncovered", "deviates", "problem")
    }
    return {**counts, "seconds": round(result.seconds, 1), "causes": causes, "asked": asked}


def deviation_json(deviation: Deviation) -> dict[str, Any]:
    """Return a deviation as plain values; a size that is infinite is null."""
    size = deviation.size if deviation.size < float("inf") else None
    return {**vars(deviation), "size": size, "ranks": list(deviation.ranks)}
