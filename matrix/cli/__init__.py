"""The command line: one module per command, with its function `NAME_command`, which gets the parsed arguments.

A command's module has the command's name and is imported only for that command: `megatrix --help` imports none. What
its help prints, and its arguments, are in commands/NAME.toml; arguments of several commands in commands/shared.toml.
HELP_WORDS of a module replace their {NAME} in the help. A module whose arguments depend on more than its table has
`add_parser(commands)`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

# In the order of `megatrix --help`.
COMMANDS: Final = (
    *("check", "match", "fit", "compare", "bisect", "show", "contract", "plan", "run", "report", "parity", "catalog"),
    *("sources", "bundle", "build", "surface", "completion"),
)


class Command(NamedTuple):
    """A command in one line, its document, its examples, and the meaning of those exit statuses that differ by command.

    `about` follows the line in the help, `resume_hint` the report of an interruption. `good`, `bad` and `nothing` are
    of ExitStatus; "" is a status that the command never has. `options` are its arguments, `parts` further tables of
    arguments, or the commands below it.
    """

    text: str
    document: str
    examples: Sequence[str]
    good: str
    bad: str = ""
    nothing: str = ""
    about: str = ""
    resume_hint: str = ""
    options: Mapping[str, Any] = {}
    parts: Mapping[str, Any] = {}
