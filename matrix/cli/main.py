"""The command line: `megatrix` and `python -m matrix`."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from matrix import __version__
from matrix.cli import COMMANDS
from matrix.errors import MatrixError

INTERRUPTED = 130  # exit status after Ctrl-C, as a shell has it


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return its exit status: 0 green, 1 red or not reached, 2 a mistake in the input."""
    given = sys.argv[1:] if arguments is None else arguments
    parsed = parser(given).parse_args(given)
    try:
        status: int = parsed.command(parsed)
    except MatrixError as error:
        print(f"megatrix: {error}", file=sys.stderr)
        return skip() if getattr(parsed, "exit_code", False) else 2  # git takes 2 for "bad"
    except KeyboardInterrupt:
        goes_on = getattr(parsed, "goes_on", "`megatrix run --resume` goes on from here")
        print(f"megatrix: interrupted; {goes_on}", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader (head, less) has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return skip() if getattr(parsed, "exit_code", False) else 0
    return status


def parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser for these arguments: the options of their command, and of the other commands the names."""
    about = "Known Megatron-LM x Transformer Engine x PyTorch x driver failures, run for real."
    top = argparse.ArgumentParser(prog="megatrix", description=about)
    top.add_argument("--version", action="version", version=f"megatrix {__version__}")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    chosen = next((word for word in arguments if not word.startswith("-")), "")
    for name, text in COMMANDS.items():
        if name == chosen:
            importlib.import_module(f"{__package__}.{name}").add_parser(commands)
        else:
            commands.add_parser(name, help=text)
    return top


def skip() -> int:
    """Return the exit status by which `git bisect run` leaves a commit out."""
    from matrix.bisection.noise import Seen
    from matrix.bisection.probing import GIT  # `run --exit-code`, which needs it, has imported it

    return GIT[Seen.SKIP]
