"""Output of commands, wrapped and coloured by rich on a terminal, plain elsewhere; and its escaping for each format.

Nothing is cut: what does not fit the terminal is wider than it. rich is imported for a terminal, for colours, and for
characters that may be wider than one column: other output is laid out here, in a tenth of rich's time.

No text of a log is markup or a command: HTML is escaped by its templates (document.py); what leaves through the
standard output of a CI job passes `escape_markers`, too.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TextIO, TypeAlias

from matrix import __version__
from matrix.ground.verdicts.text import one_line, visible

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text


WIDTH: Final = 160  # characters of a log text in a table
LONG: Final = 2_000  # characters of a command elsewhere
# GitHub's runner executes a line that starts with :: after blanks, and ##[ anywhere in a line (actions/runner,
# ActionCommand.cs, read at its main of 2026-11); Azure Pipelines ##vso[, TeamCity ##teamcity[.
_COMMAND: Final = re.compile(r"(?m)^([^\S\n]*:)(?=:)|(#)(?=#(?:vso|teamcity)?\[)")


def escape_markers(text: str) -> str:
    """Return a text of which a CI service executes no line: a blank is within what starts a command."""
    return _COMMAND.sub(lambda match: f"{match[0]} ", text)


def markdown_text(text: str) -> str:
    """Return a text on one line, of which nothing is markup, a mention or a cell of its own."""
    line = escape_markers(one_line(text, 600)).replace("<", "&lt;")
    return re.sub(r"([\\|`*_\[\]#~])", r"\\\1", line).replace("@", "&#64;")


def code(text: str, *, in_table: bool = True) -> str:
    """Return a text as a code span. One in a table has no |."""
    line = escape_markers(one_line(text, WIDTH if in_table else LONG)).replace("|", "¦" if in_table else "|") or " "
    ticks = _fence(line, 1)
    return f"{ticks} {line} {ticks}" if "`" in line else f"`{line}`"


def block(text: str) -> str:
    """Return a text as a code block."""
    ticks = _fence(text, 3)
    return f"{ticks}text\n{escape_markers(visible(text))}\n{ticks}"


def github_text(text: str, *, value: bool = False) -> str:
    """Return a text as the message of a workflow command, or as the value of one of its properties."""
    line = visible(text).replace("%", "%25").replace("\n", "%0A")
    return line.replace(":", "%3A").replace(",", "%2C") if value else line


def xml_document(document: str) -> str:
    """Return an XML document, of ElementTree and visible texts, of which a CI service executes no line."""
    return re.sub(r"(?m)^([^\S\n]*):(?=:)", r"\1&#58;", document).replace("##", "#&#35;")


def json_text(value: Any, indent: int | None = None) -> str:
    """Return plain values as JSON in ASCII, of which a CI service executes no line."""
    return json.dumps(value, indent=indent).replace("##", "#\\u0023")


def _fence(text: str, least: int) -> str:
    """Return more backticks than stand together in a text."""
    return "`" * max(least, max(map(len, re.findall("`+", text)), default=0) + 1)


def json_object(schema: str, items: Iterable[Mapping[str, Any]], **beside: Any) -> str:
    """Return one line: an object with the keys schema, version (of Megatrix) and items, and those `beside` them.

    A schema is written NAME/N: docs/schema/NAME.json describes it, and N increases when a key changes its meaning.
    """
    # ASCII: texts may not be UTF-8.
    return json_text({"schema": f"megatrix/{schema}", "version": __version__, "items": list(items)} | beside)


UNLIMITED: Final = 1 << 16  # columns, where no terminal limits a line
RED: Final = "bold red"  # the style of what fails
WIDE: Final = 120  # columns of a table that a person still reads there
ASKING: Final = ("COLUMNS", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")  # variables that rich reads for a pipe


@dataclass(frozen=True)
class Prose:
    """A paragraph, `indent` columns from the left."""

    text: str
    indent: int = 0


@dataclass(frozen=True)
class Styled:
    """A paragraph of which each part has a style of rich, "" for none."""

    parts: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return "".join(part for part, _ in self.parts)


@dataclass(frozen=True)
class Rows:
    """Rows of a table, as `table` describes it."""

    rows: tuple[tuple[Styled, ...], ...]
    indent: int
    gap: int


@dataclass(frozen=True)
class Alternative:
    """A table, and the parts that replace it where it can't be as narrow as the terminal."""

    table: Rows
    narrow: tuple[Part, ...]


# A string is one line that is never wrapped: a command, a case. All others wrap between words.
Part: TypeAlias = "str | Prose | Styled | Rows | Alternative"


def show(*parts: Part, quiet: bool = False) -> None:
    """Print the parts to stdout; with `quiet` the first alone, which is the verdict of an answer."""
    sys.stdout.write(rendered(console(sys.stdout, os.environ), *(parts[:1] if quiet else parts)))
    sys.stdout.flush()


def plain(text: str) -> str:
    """Return a text that may quote what others wrote, such as a name, as a command prints it."""
    return escape_markers(visible(text))


def say(line: str) -> None:
    """Print a line to stderr."""
    print(plain(line), file=sys.stderr, flush=True)


def warn(warning: str) -> None:
    """Print a warning to stderr."""
    print(f"megatrix: {plain(warning)}", file=sys.stderr)


def console(stream: TextIO, environ: Mapping[str, str]) -> Console | None:
    """Return the console of a stream; None where it is no terminal, and no variable asks for a width or for colours.

    COLUMNS, FORCE_COLOR, NO_COLOR and TERM count.
    """
    asked = stream.isatty() or any(environ.get(name) for name in ASKING)
    return _console(stream, environ) if asked else None


def _console(stream: TextIO, environ: Mapping[str, str]) -> Console:
    from rich.console import Console

    terminal = stream.isatty()
    if environ.get("COLUMNS") == "0":  # rich would print nothing
        environ = {**environ, "COLUMNS": ""}
    return Console(
        file=stream,
        width=None if terminal or environ.get("COLUMNS", "").isdigit() else UNLIMITED,
        color_system=None if environ.get("NO_COLOR") else "auto",
        no_color=False,
        soft_wrap=True,
        markup=False,
        emoji=False,
        highlight=False,
        _environ=environ,
    )


def rendered(target: Console | None, *parts: Part) -> str:
    """Return the parts as `target` shows them, None as a pipe does; without trailing spaces."""
    texts = [_wide(target, part) if target else _plain(part) for part in parts]
    return "".join(texts) if target and target.is_terminal else escape_markers("".join(texts))


def _plain(part: Part) -> str:
    """Return a part in lines of unlimited length."""
    if isinstance(part, str):
        return f"{visible(part)}\n"
    if isinstance(part, Alternative):
        plain = _is_plain(*(str(cell) for row in part.table.rows for cell in row))
        if plain and part.table.rows:
            return "".join(map(_plain, [part.table] if _least_width(part.table) <= WIDE else part.narrow))
    elif isinstance(part, Rows):
        rows = [[str(cell) for cell in row] for row in part.rows]
        if rows and all(_is_plain(*row) for row in rows):
            return "".join(_lines(part, rows))
    elif _is_plain(line := f"{' ' * part.indent}{part.text}" if isinstance(part, Prose) else str(part)):
        return f"{line.rstrip(' ')}\n"
    return _wide(_console(io.StringIO(), {}), part)


def _is_plain(*texts: str) -> bool:
    """Return whether each character is one column wide."""
    return all(each.isascii() and each.isprintable() for each in texts)


def _least_width(part: Rows) -> int:
    """Return the columns of a plain table whose last column is as narrow as its longest word."""
    *columns, last = zip(*part.rows, strict=True)
    word = max((len(word) for cell in last for word in str(cell).split()), default=0)
    return part.indent + sum(max(len(str(cell)) for cell in column) + part.gap for column in columns) + word


def _lines(part: Rows, rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        yield f"{' ' * part.indent}{(' ' * part.gap).join(cells)}".rstrip(" ") + "\n"


def _wide(target: Console, part: Part) -> str:
    """Return a part as rich lays it out."""
    from rich.measure import Measurement
    from rich.segment import Segments

    if isinstance(part, Prose):
        line = f"{' ' * part.indent}{visible(part.text)}".rstrip(" ")
        # rich takes 0.3 ms for a line, and a plan may have 100,000.
        part = line if len(line) <= target.width and _is_plain(line) else part
    if isinstance(part, str):
        return f"{visible(part)}\n"
    if isinstance(part, Alternative):
        room = WIDE if target.width == UNLIMITED else target.width
        least = Measurement.get(target, target.options.update(width=UNLIMITED), _renderable(part.table)).minimum
        return "".join(_wide(target, each) for each in ([part.table] if least <= room else part.narrow))
    shown = _renderable(part)
    width = max(target.width, Measurement.get(target, target.options.update(width=UNLIMITED), shown).minimum)
    with target.capture() as captured:
        target.print(Segments(target.render(shown, target.options.update(width=width))), end="")
    return re.sub("(?<! ) +$", "", captured.get(), flags=re.MULTILINE)


def _renderable(part: Prose | Styled | Rows) -> RenderableType:
    from rich.padding import Padding
    from rich.table import Table

    if isinstance(part, Prose):
        return Padding(_rich_text(text(part.text)), (0, 0, 0, part.indent), expand=False)
    if isinstance(part, Styled):
        return _rich_text(part)
    grid = Table(box=None, pad_edge=False, padding=(0, part.gap, 0, 0), show_header=False)
    rows = [[_rich_text(cell) for cell in row] for row in part.rows]
    for number, column in enumerate(zip(*rows, strict=True), start=1):
        wraps = number == len(rows[0])
        grid.add_column(no_wrap=not wraps, min_width=None if wraps else max(cell.cell_len for cell in column))
    for row in rows:
        grid.add_row(*row)
    return Padding(grid, (0, 0, 0, part.indent), expand=False)


def _rich_text(part: Styled) -> Text:
    from rich.text import Text

    return Text.assemble(*part.parts)


def paragraphs(lines: str) -> Iterator[Prose]:
    """Yield each line as a paragraph, indented as it is."""
    for line in lines.splitlines():
        yield Prose(line.lstrip(" "), len(line) - len(line.lstrip(" ")))


def text(*parts: str | tuple[str, str]) -> Styled:
    """Return text that is neither markup nor control characters; a pair is a text and its style."""
    pairs = ((part, "") if isinstance(part, str) else part for part in parts)
    return Styled(tuple((visible(words), style) for words, style in pairs))


def table(rows: Iterable[Sequence[str | Styled]], heads: Sequence[str] = (), *, indent: int = 0, gap: int = 1) -> Rows:
    """Return a table. Its last column wraps between words, the others never do.

    `gap` is the number of spaces between columns.
    """
    cells = (tuple(cell if isinstance(cell, Styled) else text(cell) for cell in row) for row in (heads, *rows) if row)
    return Rows(tuple(cells), indent, gap)
