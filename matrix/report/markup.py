"""HTML fragments that the pages share: escaped text, verdict marks, levels, commands to copy."""

from __future__ import annotations

import html

from matrix.catalog.failure import Level
from matrix.report.words import label
from matrix.verdicts.record import Record, Verdict
from matrix.verdicts.text import visible

# One mark per verdict, distinct by shape alone: green is a circle, red a square, learned a diamond, no result an
# outline. 16 x 16 units; `glyph` is drawn in the background colour.
_LINE = 'class="glyph" fill="none" stroke-width="2" stroke-linecap="round" stroke-linejoin="round"'
_ROUND = '<circle cx="8" cy="8" r="7.5" fill="currentColor"/>'
_SQUARE = '<path d="M.5.5h15v15H.5z" fill="currentColor"/>'
_SHAPES = {
    Verdict.HOLDS: f'{_ROUND}<path {_LINE} d="m4.5 8.3 2.4 2.4 4.6-5"/>',
    Verdict.REPRODUCED: f'{_ROUND}<circle {_LINE} cx="8" cy="8" r="3.2"/>',
    Verdict.VANISHED: f'{_SQUARE}<circle {_LINE} stroke-dasharray="1.6 3.4" cx="8" cy="8" r="4"/>',
    Verdict.REGRESSED: f'{_SQUARE}<path {_LINE} d="M8 4v8m-3.4-3.2L8 12l3.4-3.2"/>',
    Verdict.UNEXPLAINED: f'{_SQUARE}<path {_LINE} d="M5.7 6.1a2.4 2.4 0 1 1 3.5 2.1C8.4 8.6 8 9 8 9.8M8 12.3v.1"/>',
    Verdict.LEARNED: f'<path d="M8 0l8 8-8 8-8-8z" fill="currentColor"/><path {_LINE} d="M8 5v6M5 8h6"/>',
    Verdict.UNAVAILABLE: '<g fill="none" stroke="currentColor" stroke-width="1.5"><circle cx="8" cy="8" r="6.7"/>'
    '<path d="M3.4 12.6l9.2-9.2"/></g>',
    Verdict.NOT_REACHED: '<path d="M1.2 1.2h13.6v13.6H1.2z" fill="none" stroke="currentColor" stroke-width="1.5" '
    'stroke-dasharray="2.6 2"/>',
}


def escape(text: object) -> str:
    """Return text for HTML: control characters made visible, markup and quotes escaped."""
    return html.escape(visible(str(text)), quote=True)


def marks() -> str:
    """Return the definitions of all verdict marks; a page contains them once."""
    symbols = (
        f'<symbol id="v-{verdict.value}" viewBox="0 0 16 16">{shape}</symbol>' for verdict, shape in _SHAPES.items()
    )
    return f'<svg width="0" height="0" aria-hidden="true"><defs>{"".join(symbols)}</defs></svg>'


def mark(verdict: Verdict) -> str:
    """Return a verdict's mark; the caller adds its name as text or as the label of its link."""
    return f'<svg class="v {verdict.value}" aria-hidden="true"><use href="#v-{verdict.value}"/></svg>'


def word(verdict: Verdict) -> str:
    """Return a verdict's mark and name."""
    return f'<span class="word-v">{mark(verdict)} {verdict.value}</span>'


def level(level: Level) -> str:
    """Return the badge of a level."""
    return f'<span class="level">{level.value}</span>'


def case(record: Record) -> str:
    """Return the cell and case of a record as one line, without the level."""
    return f'<span class="id">{escape(label(record.cell))}</span> {escape(record.case)}'


def failure_link(failure: str) -> str:
    """Return a failure's id as a link from index.html to the failure's page."""
    return f'<a href="failures/{escape(failure)}.html">{escape(failure)}</a>'


def listing(text: str) -> str:
    """Return lines of a log or a stack in a block that scrolls by keyboard."""
    return f'<pre tabindex="0">{escape(text)}</pre>'


def copyable(line: str) -> str:
    """Return a command with a button that copies it."""
    text = html.escape(" ".join(visible(line).split()))
    copy = '<button class="script-only" data-copy="">copy</button>'
    return f'<div class="paste"><code tabindex="0">{text}</code>{copy}</div>'
