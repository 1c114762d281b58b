"""The help of commands: it fits the terminal and ends with the exit statuses, examples and a document."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from typing import Any, NoReturn

from matrix.cli import COMMANDS, Command
from matrix.ground.errors import ExitStatus, MatrixError, closest


class Parser(argparse.ArgumentParser):
    """Raises MatrixError for wrong arguments: like other errors, as text or as JSON.

    `instead` are options of other programs that people give: option -> what does the same here.
    """

    instead: Mapping[str, str] = {}

    def error(self, message: str) -> NoReturn:
        """Raise MatrixError."""
        raise MatrixError(message, fix=f"{self.prog} --help")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Return what argparse returns. Raises MatrixError for what it does not take, with the nearest option."""
        parsed, further = super().parse_known_args(args, namespace)
        if further and further[0].startswith("-"):
            option = further[0].partition("=")[0]
            near = f"{closest(option, self._option_string_actions)} `{self.prog} --help` describes them"
            raise MatrixError(f"no such option of {self.prog}", got=further[0], fix=self.instead.get(option, near))
        if further:
            raise MatrixError(
                "an argument too many",
                got=further[0],
                fix=f"give options after all arguments; `{self.prog} --help` describes both",
            )
        return parsed, further


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


def statuses(command: Command) -> dict[ExitStatus, str]:
    """Return the exit statuses of a command, with what they mean there."""
    texts = {
        ExitStatus.GOOD: command.good,
        ExitStatus.BAD: command.bad,
        ExitStatus.MISTAKE: "invalid input",
        ExitStatus.NOTHING: command.nothing,
        ExitStatus.INTERRUPTED: "interrupted",
    }
    return {status: text for status, text in texts.items() if text}


def add_command(commands: Any, name: str, described: Command | None = None) -> Parser:
    """Add a command, by default the one of COMMANDS, to the object that argparse's add_subparsers returned."""
    command = described or COMMANDS[name]
    ends = "\n".join(f"  {status:<3d}  {text}" for status, text in statuses(command).items())
    examples = "\n".join(f"    megatrix {example}" for example in command.examples)
    parser: Parser = commands.add_parser(
        name,
        help=command.text,
        description=command.text,
        epilog=f"exit status:\n{ends}\n\nexamples:\n{examples}\n\nmore: {command.document}",
        formatter_class=Help,
    )
    return parser
