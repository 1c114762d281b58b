"""The history of a case as SVG: a bar for each verdict, a line for the durations; both with a text alternative."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from matrix.report.markup import escape
from matrix.store.trend import PastResult, steps
from matrix.verdicts.record import Verdict

BAR, HEIGHT = 9, 22  # width and height of a night's bar, SVG user units
# Height and colour both show the verdict: red is full height, green half, no result a thin line.
HEIGHTS: Final = {"red": 22, "learned": 15, "green": 10}
TREND: Final = 60  # height of the line of durations, SVG user units


def strip(pasts: Sequence[PastResult]) -> str:
    """Return a bar for each night, oldest first."""
    bars = "".join(_bar(place, past) for place, past in enumerate(pasts))
    text = escape(render(pasts))
    return (
        f'<svg class="strip" width="{BAR * len(pasts)}" height="{HEIGHT}" role="img" aria-label="{text}">{bars}</svg>'
    )


def render(pasts: Sequence[PastResult]) -> str:
    """Return the verdicts, oldest first, equal neighbours as one: "holds x 12, regressed x 2"."""
    runs: list[tuple[Verdict, int]] = []
    for past in pasts:
        if runs and runs[-1][0] is past.verdict:
            runs[-1] = (past.verdict, runs[-1][1] + 1)
        else:
            runs.append((past.verdict, 1))
    return ", ".join(f"{verdict.value} x {count}" for verdict, count in runs)


def _bar(place: int, past: PastResult) -> str:
    high = HEIGHTS.get(past.verdict.colour, 3)
    tint = ' opacity=".45"' if past.cached else ""
    title = escape(f"{past.run}: {past.verdict.value}{', cached' if past.cached else ''}")
    return (
        f'<rect class="{past.verdict.value}" x="{place * BAR}" y="{HEIGHT - high}" width="{BAR - 2}" height="{high}"'
        f'{tint} fill="currentColor"><title>{title}</title></rect>'
    )


def trend(pasts: Sequence[PastResult]) -> str:
    """Return the durations (s) of the nights in which the case ran as a line, steps marked; "" for fewer than two."""
    ran = [past for past in pasts if past.ran]
    if len(ran) < 2:
        return ""
    seconds = [past.seconds for past in ran]
    top = max(max(seconds), 0.001)
    points = [(place * BAR + 4, round(TREND - 4 - (TREND - 8) * each / top, 1)) for place, each in enumerate(seconds)]
    line = " ".join(f"{x},{y}" for x, y in points)
    marked = steps(seconds)
    marks = "".join(
        f'<line class="step" x1="{x}" y1="0" x2="{x}" y2="{TREND}"/>' for x, _ in map(points.__getitem__, marked)
    )
    changes = [f"from {seconds[place - 1]:.1f} s to {seconds[place]:.1f} s at {ran[place].run}" for place in marked]
    text = f"{min(seconds):.1f} to {top:.1f} s in {len(ran)} runs; " + (
        f"steps {'; '.join(changes)}" if changes else "no step"
    )
    return (
        f'<svg class="trend" width="{BAR * len(ran)}" height="{TREND}" role="img" aria-label="{escape(text)}">'
        f'{marks}<polyline points="{line}"/></svg><p class="soft">{escape(text)}</p>'
    )
