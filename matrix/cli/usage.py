"""The help of commands: it fits the terminal and ends with the exit statuses and an example."""

from __future__ import annotations

import argparse
import re
from typing import Any

from matrix.cli import COMMANDS, Command


class Help(argparse.HelpFormatter):
    """Wraps each line of a description or epilog alone, below its second column; four spaces keep a line whole."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(line if line.startswith("    ") else wrapped(line, width) for line in text.splitlines())


def wrapped(line: str, width: int) -> str:
    """Return the line in at most `width` columns; further lines start where its text starts: after two spaces."""
    import textwrap  # argparse, too, imports it only to print help

    start = re.match(r" *(?:\S+ {2,})?", line)
    hang = " " * (start.end() if start else 0)
    return textwrap.fill(line, width, subsequent_indent=hang, break_long_words=False, break_on_hyphens=False)


def add_command(commands: Any, name: str, described: Command | None = None) -> argparse.ArgumentParser:
    """Add a command, by default the one of COMMANDS, to the object that argparse's add_subparsers returned."""
    text, status, example = described or COMMANDS[name]
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=text,
        description=text,
        epilog=f"exit status: {status}, 2 invalid input\n\nexample:\n    megatrix {example}",
        formatter_class=Help,
    )
    return parser
