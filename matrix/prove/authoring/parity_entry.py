"""The draft of an entry from layouts judged over releases: each layout is a case, which the kit's comparison runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import groupby
from pathlib import Path

from matrix.ground.catalog.failure import PARITY
from matrix.ground.catalog.folders import ENTRY
from matrix.ground.errors import MatrixError
from matrix.kit.parity.factors import Point, Value, factors, shown
from matrix.prove.authoring.draft import new_folder, template
from matrix.prove.parity.campaigns import CoreResult
from matrix.prove.parity.points import DEVIATES, EQUAL, PointResult
from matrix.prove.store.paths import write_whole


@dataclass(frozen=True)
class ReleaseSpan:
    """Consecutive releases in which a layout has one outcome, EQUAL or DEVIATES; `end` is the first one after it."""

    outcome: str
    rows: Mapping[str, PointResult]
    end: str

    @property
    def ends(self) -> tuple[str, str]:
        """The first and the last release that were run."""
        cores = list(self.rows)
        return cores[0], cores[-1]

    @property
    def bounds(self) -> str:
        """The range of releases."""
        return f">={self.ends[0]}" + (f",<{self.end}.dev0" if self.end else "")

    @property
    def table(self) -> str:
        """The table of its rule."""
        return "works" if self.outcome == EQUAL else "affected"

    @property
    def result(self) -> str:
        """What its runs show."""
        largest = max(row.largest for row in self.rows.values())
        return "equal" if self.outcome == EQUAL else f"deviates by up to {largest:.2g}"


def write(id: str, root: Path, points: Sequence[Point], results: Sequence[CoreResult]) -> Path:
    """Write the entry of layouts under `root`; return its file. Raises MatrixError, also where the entry exists."""
    text = entry_text(id, points, results, date.today())
    path = new_folder(id, root) / ENTRY
    write_whole(path, text)
    return path


def entry_text(id: str, points: Sequence[Point], results: Sequence[CoreResult], today: date) -> str:
    """Return the failure.toml of layouts: the first deviates, the others are its controls.

    `results` are those of releases, the oldest first. Raises MatrixError where the first layout deviates in none.
    """
    spans = {point: spans_of(point, results) for point in points}
    deviating = [span for span in spans[points[0]] if span.outcome == DEVIATES]
    if not deviating:
        raise MatrixError("no release deviates: there is no failure to enter", got=str(points[0]))
    changes = {core for several in spans.values() for span in several for core in (span.ends[1], span.end) if core}
    night = [result for result in results if result.core in changes]
    turned = [*points[1:], points[0]]
    return template(
        "parity_failure.toml",
        id=id,
        month=f"{today:%Y-%m}",
        fix=f"megatron-core {deviating[-1].end}." if deviating[-1].end else f"Open in {results[-1].core}.",
        signatures=list(_signatures(deviating)),
        layout=str(points[0]),
        replicated=points[0]["dp"] != 1,
        arguments=list(conditions(points[0], points[1:])),
        rules=[(span, case_name(point) * (point != points[0])) for point in turned for span in spans[point]],
        cases=[(case_name(point), point, spans[point][0].ends[0]) for point in points if spans[point]],
        run=PARITY,
        bases=sorted({result.base for result in night}),
        night=[result.core for result in night],
    )


def spans_of(point: Point, results: Sequence[CoreResult]) -> list[ReleaseSpan]:
    """Return the spans of a layout; a release that refuses it, or has no answer, decides nothing."""
    rows = [(result.core, row) for result in results for row in result.asked if row.point == point]
    decided = [(core, row) for core, row in rows if row.outcome in (EQUAL, DEVIATES)]
    groups = [(outcome, dict(group)) for outcome, group in groupby(decided, key=lambda pair: pair[1].outcome)]
    starts = [*(next(iter(group)) for _, group in groups[1:]), ""]
    return [ReleaseSpan(outcome, group, end) for (outcome, group), end in zip(groups, starts, strict=True)]


def conditions(point: Point, controls: Sequence[Point]) -> Iterator[str]:
    """Yield the arguments that reach a layout; a switch that a control alone has is excluded."""
    for name, value in point.chosen:
        yield from _conditions(factors()[name].arguments(value))
    for name, value in dict(pair for control in controls for pair in control.chosen).items():
        option = factors()[name].arguments(value)
        if value is True and point[name] is False and " " not in option:
            yield f"not {option}"


def _conditions(arguments: str) -> Iterator[str]:
    for option, value in re.findall(r"(--[\w-]+)(?: ([^-]\S*))?", arguments):
        number, rate = re.fullmatch(r"\d+", value) and int(value) > 1, re.fullmatch(r"0?\.\d+", value)
        kind = "" if not value else " >= 2" if number else " != 0|0.0" if rate else f" == {value}"
        yield option + kind


def case_name(point: Point) -> str:
    """Return the name of a layout's case: "mla-tp2-sequence_parallel"."""
    return "-".join(_word(name, value) for name, value in point.chosen)


def _word(name: str, value: Value) -> str:
    return name if value is True else shown(value) if isinstance(value, str) else f"{name}{shown(value)}"


def _signatures(deviating: Sequence[ReleaseSpan]) -> Iterator[tuple[str, str]]:
    """Yield each quantity that deviates, with the key for its parameters."""
    rows = {span.rows[core].deviations[0] for span in deviating for core in span.rows}
    for quantity in sorted({row.quantity for row in rows}):
        parameters = sorted({row.parameter.rpartition(".layers.")[2] for row in rows if row.quantity == quantity})
        yield quantity, f", parameter = '{'|'.join(map(re.escape, parameters))}'" if any(parameters) else ""
