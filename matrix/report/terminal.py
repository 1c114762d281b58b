"""Output of commands, by rich: wrapped and coloured on a terminal, whole lines without escape codes elsewhere.

Nothing is cut: what does not fit the terminal is wider than it. rich is imported to print, not with this module.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TextIO, TypeAlias

from matrix.report.escaping import inert
from matrix.verdicts.text import visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

UNLIMITED: Final = 1 << 16  # columns, where no terminal limits a line
RED: Final = "bold red"  # the style of what fails
WIDE: Final = 120  # columns of a table that a person still reads there


@dataclass(frozen=True)
class Prose:
    """A paragraph, `indent` columns from the left."""

    text: str
    indent: int = 0


@dataclass(frozen=True)
class Alternative:
    """A table, and the parts that replace it where it can't be as narrow as the terminal."""

    table: Padding
    narrow: tuple[Part, ...]


# A string is one line that is never wrapped: a command, a case. All others wrap between words.
Part: TypeAlias = "str | Prose | Text | Padding | Alternative"


def show(*parts: Part) -> None:
    """Print the parts to stdout."""
    sys.stdout.write(rendered(console(sys.stdout, os.environ), *parts))
    sys.stdout.flush()


def warn(warning: str) -> None:
    """Print a warning to stderr."""
    print(f"megatrix: {inert(visible(warning))}", file=sys.stderr)


def console(stream: TextIO, environ: Mapping[str, str]) -> Console:
    """Return the console of a stream; COLUMNS, FORCE_COLOR, NO_COLOR and TERM count, and a CI log is never animated."""
    from rich.console import Console

    terminal = stream.isatty()
    if environ.get("COLUMNS") == "0":  # rich would print nothing
        environ = {**environ, "COLUMNS": ""}
    return Console(
        file=stream,
        width=None if terminal or environ.get("COLUMNS", "").isdigit() else UNLIMITED,
        color_system=None if environ.get("NO_COLOR") else "auto",
        no_color=False,
        force_interactive=None if terminal and not environ.get("GITHUB_ACTIONS") else False,
        soft_wrap=True,
        markup=False,
        emoji=False,
        highlight=False,
        _environ=environ,
    )


def rendered(target: Console, *parts: Part) -> str:
    """Return the parts as `target` shows them, without trailing spaces."""
    from rich.measure import Measurement
    from rich.padding import Padding
    from rich.segment import Segments

    texts, unlimited = [], target.options.update(width=UNLIMITED)
    for part in parts:
        if isinstance(part, Prose):
            line = f"{' ' * part.indent}{visible(part.text)}".rstrip(" ")
            # rich takes 0.3 ms for a line, and a plan may have 100,000.
            short = len(line) <= target.width and line.isascii() and line.isprintable()
            part = line if short else Padding(text(part.text), (0, 0, 0, part.indent), expand=False)
        if isinstance(part, str):
            texts.append(f"{visible(part)}\n")
        elif isinstance(part, Alternative):
            room = WIDE if target.width == UNLIMITED else target.width
            fits = Measurement.get(target, unlimited, part.table).minimum <= room
            texts.append(rendered(target, *([part.table] if fits else part.narrow)))
        else:
            width = max(target.width, Measurement.get(target, unlimited, part).minimum)
            with target.capture() as captured:
                target.print(Segments(target.render(part, target.options.update(width=width))), end="")
            texts.append(re.sub(" +$", "", captured.get(), flags=re.MULTILINE))
    return "".join(texts) if target.is_terminal else inert("".join(texts))


def paragraphs(lines: str) -> Iterator[Prose]:
    """Yield each line as a paragraph, indented as it is."""
    for line in lines.splitlines():
        yield Prose(line.lstrip(" "), len(line) - len(line.lstrip(" ")))


def text(*parts: str | tuple[str, str]) -> Text:
    """Return text that is neither markup nor control characters; a pair is a text and its style."""
    from rich.text import Text

    return Text.assemble(*(visible(part) if isinstance(part, str) else (visible(part[0]), part[1]) for part in parts))


def table(
    rows: Iterable[Sequence[str | Text]],
    heads: Sequence[str] = (),
    *,
    indent: int = 0,
    gap: int = 1,
    right: bool = False,
) -> Padding:
    """Return a table. Its last column wraps between words, the others never do.

    `gap` is the number of spaces between columns; with `right` all columns but the first are aligned to the right.
    """
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    cells = [[cell if isinstance(cell, Text) else text(cell) for cell in row] for row in (heads, *rows) if row]
    grid = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), show_header=False)
    for number, column in enumerate(zip(*cells, strict=True), start=1):
        wraps = number == len(cells[0])
        grid.add_column(
            justify="right" if right and number > 1 else "left",
            no_wrap=not wraps,
            min_width=None if wraps else max(cell.cell_len for cell in column),
        )
    for row in cells:
        grid.add_row(*row)
    return Padding(grid, (0, 0, 0, indent), expand=False)
