"""`megatrix completion`."""

from __future__ import annotations

import argparse
from typing import Any, Final

from matrix.cli.usage import add_command
from matrix.ground.errors import ExitStatus, MatrixError

SHELLS: Final = ("bash", "zsh")


def add_parser(commands: Any) -> None:
    """Add the command to the object that argparse's add_subparsers returned."""
    parser = add_command(commands, "completion")
    parser.add_argument("shell", choices=SHELLS, help="the shell that reads the script")
    parser.set_defaults(command=completion_command)


def completion_command(parsed: argparse.Namespace) -> int:
    """Print a script that completes every command and option; it starts no process of its own."""
    from matrix.cli.main import whole_parser  # which imports this module

    try:
        import shtab
    except ImportError:
        raise MatrixError("shell completion needs the package shtab", fix="pip install shtab") from None
    print(shtab.complete(whole_parser(), shell=parsed.shell))
    return ExitStatus.GOOD
