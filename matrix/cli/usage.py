"""The help of commands, with exit statuses, examples and a document; the options that several commands have."""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias

from matrix.cli import Command
from matrix.ground.errors import ExitStatus, MatrixError, closest

if TYPE_CHECKING:  # main.py imports this module for --help
    from matrix.ground.catalog.reach import JobOption
    from matrix.ground.verdicts.trend import PastResult


def share(text: str) -> float:
    """Return the value of "5%" or "0.05". Raises ValueError, which argparse reports."""
    value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    if not 0 < value < 10:
        raise ValueError(text)
    return value


def out_folder() -> Path:
    """Return $MEGATRIX_OUT, or reports/out in the current folder."""
    from matrix.prove.store.paths import OUT  # not needed for the help of all commands

    return Path(os.environ.get("MEGATRIX_OUT", OUT))


TYPES: Final = {"int": int, "float": float, "path": Path, "share": share}
# Defaults that depend on the process, by what a table writes for them.
DEFAULTS: Final[Mapping[str, Callable[[], Any]]] = {
    "$MEGATRIX_OUT": out_folder,
    "$CORES": lambda: os.cpu_count() or 1,
    "$MACHINE": lambda: os.uname().machine,
}


@cache
def texts(name: str) -> dict[str, Any]:
    """Return the content of commands/NAME.toml, without schema.read_toml: its imports would double --help's time."""
    tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    content: dict[str, Any] = tomllib.loads((Path(__file__).parent / "commands" / f"{name}.toml").read_text("utf-8"))
    return content


def described(name: str) -> Command:
    """Return a command of COMMANDS."""
    return Command(**texts(name))


def add_arguments(parser: argparse._ActionsContainer, rows: Mapping[str, Any], words: Mapping[str, str] = {}) -> None:
    """Add the arguments of a table: "-n, --name" = what argparse takes. `words` replace their {NAME} in the help.

    NAME = "shared" stands for the table of that name in commands/shared.toml. `type` is one of TYPES, `choices` also
    the name of an enum, `default` also one of DEFAULTS; arguments with the same `one_of` exclude each other.
    """
    groups: dict[str, argparse._ActionsContainer] = {"": parser}
    for names, row in _whole(rows):
        settings: dict[str, Any] = {name: _read(name, value) for name, value in row.items()}
        if (one_of := settings.pop("one_of", "")) not in groups:
            groups[one_of] = parser.add_mutually_exclusive_group()
        for name, text in words.items():
            settings["help"] = settings["help"].replace(f"{{{name}}}", text)
        groups[one_of].add_argument(*names.split(", "), **settings)


def _read(name: str, value: Any) -> Any:
    """Return what argparse takes for a value in a table."""
    if name == "type":
        return TYPES[value]
    if name == "choices" and isinstance(value, str):
        from matrix.ground.catalog import failure  # --help has no such choice

        return [member.value for member in getattr(failure, value)]
    return DEFAULTS[value]() if name == "default" and isinstance(value, str) and value in DEFAULTS else value


def _whole(rows: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the rows of a table, and in their place those of each shared table that it names."""
    for names, row in rows.items():
        if row == "shared":
            yield from _whole(texts("shared")[names])
        else:
            yield names, row


CommandFunction: TypeAlias = Callable[[argparse.Namespace], int]


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


def add_command(
    commands: Any, name: str, function: CommandFunction, command: Command | None = None, words: Mapping[str, str] = {}
) -> Parser:
    """Add a command, by default the one of COMMANDS, to the object that argparse's add_subparsers returned.

    `function` runs it; `words` are as for add_arguments.
    """
    command = command or described(name)
    ends = "\n".join(f"  {status:<3d}  {text}" for status, text in statuses(command).items())
    examples = "\n".join(f"    megatrix {example}" for example in command.examples)
    parser: Parser = commands.add_parser(
        name,
        help=command.text,
        description=f"{command.text}\n\n{command.about}".strip(),
        epilog=f"exit status:\n{ends}\n\nexamples:\n{examples}\n\nmore: {command.document}",
        formatter_class=Help,
    )
    add_arguments(parser, command.options, words)
    parser.set_defaults(command=function, resume_hint=command.resume_hint)
    return parser


def add_options(parser: argparse.ArgumentParser, options: Iterable[JobOption]) -> None:
    """Add the options; values stay text, which JobOption reads."""
    for option in options:
        try:
            parser.add_argument(f"--{option.name}", metavar=option.metavar, help=option.help or None)
        except argparse.ArgumentError:
            fix = "give the option of the site's own entry another name"
            raise MatrixError(
                "two options of one name", where="[[preflight.option]]", got=option.name, fix=fix
            ) from None


def given(parsed: argparse.Namespace, options: Iterable[JobOption]) -> dict[str, str | None]:
    """Return the text given for each option, by option name."""
    return {option.name: getattr(parsed, option.name.replace("-", "_")) for option in options}


def last_runs(out: Path) -> Mapping[str, tuple[PastResult, ...]]:
    """Return the last runs of each failure in an output folder; none without a history."""
    from matrix.prove.store.paths import Paths

    if not Paths(out).history.exists():  # sqlite3 takes 10 ms
        return {}
    from matrix.prove.store.history import last_runs
    from matrix.show.terminal import warn

    return last_runs(Paths(out).history, warn)
