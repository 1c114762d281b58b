"""SVG elements for the charts of failures, with escaped text: the values in a chart are untrusted."""

from __future__ import annotations

import html
from collections.abc import Callable
from math import log2

from matrix.ground.verdicts.text import visible


def escape(text: object) -> str:
    """Return text escaped for HTML, quotes included, with control characters written out."""
    return html.escape(visible(str(text)), quote=True)


def log_scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """Return a function from value to position: logarithmic, `low` at `start`, `high` at `end`, clamped to both."""
    span = log2(high) - log2(low)
    return lambda value: round(start + (end - start) * min(max((log2(value) - log2(low)) / span, 0), 1), 1)


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """Return a line; `kind` is its class in the style sheet of the pages: grid, marked, curve, host."""
    return f'<line class="{escape(kind)}" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>'


def label(x: float, y: float, text: object, anchor: str) -> str:
    """Return a text element; `anchor` is the part of the text at `x`: start, middle, end."""
    return f'<text x="{x}" y="{y}" text-anchor="{escape(anchor)}">{escape(text)}</text>'


def point(x: float, y: float, title: object) -> str:
    """Return a circle with a title."""
    return f'<circle cx="{x}" cy="{y}" r="4"><title>{escape(title)}</title></circle>'


def figure(width: int, height: int, about: str, parts: list[str]) -> str:
    """Return the picture; `about` is its text for screen readers."""
    box = f'viewBox="0 0 {width} {height}" role="img" aria-label="{escape(about)}"'
    return f'<svg class="plot" {box}>{"".join(parts)}</svg>'
