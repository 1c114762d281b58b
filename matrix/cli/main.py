"""The command line: `megatrix` and `python -m matrix`."""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import signal
import sys
from collections.abc import Collection, Sequence
from io import TextIOWrapper
from typing import Any

from matrix import __version__
from matrix.cli import COMMANDS
from matrix.cli.usage import Help, Parser, add_command, described, texts
from matrix.ground.errors import ExitStatus, Interrupted, MatrixError, closest

LASTING = 300_000  # objects of the modules and of the catalog, which stay: collections before take 0.015 s
ENDING = (signal.SIGTERM, signal.SIGHUP)  # as Ctrl-C; under nohup SIGHUP stays ignored
OWN = {"bisect", "check", "compare"}  # commands that take another command after --


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return its ExitStatus, or that of the user's own command."""
    words = sys.argv[1:] if arguments is None else arguments
    if arguments is None:
        gc.set_threshold(LASTING)
        if closed := open_streams():
            print(f"megatrix: {closed}", file=sys.stderr)
            return ExitStatus.MISTAKE
    words, command = split_own_command(words)
    if isinstance(sys.stdout, TextIOWrapper):  # an input's characters may be none of the terminal's encoding
        sys.stdout.reconfigure(errors="backslashreplace")
    parsed = argparse.Namespace(own=command, json="--json" in words, exit_code=False, resume_hint="")
    status = None
    try:
        try:
            status = dispatch(parsed, words, caught=ENDING if arguments is None else ())
        finally:
            print(end="", flush=True)  # the interpreter, which does it otherwise, reports an error
            if arguments is None:  # the process ends: its last collection would visit each object, for 0.03 s
                gc.freeze()
    except OSError as error:  # of standard output; the interpreter writes it once more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            why = f"standard output can't be written, or a folder is gone: {error.strerror or error}"
            return failed(argparse.Namespace(json=False), MatrixError(why), ExitStatus.MISTAKE)
        if status is None:  # the reader (head, less) has exited
            status = skip() if parsed.exit_code else ExitStatus.GOOD
    return status


def open_streams() -> str:
    """Open closed standard streams, so that no file gets their numbers; return why no answer can be printed, or ""."""
    closed = [stream is None for stream in (sys.stdin, sys.stdout, sys.stderr)]
    for number in (number for number, is_closed in enumerate(closed) if is_closed):
        os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
        if number == 2:
            sys.stderr = os.fdopen(2, "w")
    return "standard output is closed" if closed[1] else ""


def dispatch(parsed: argparse.Namespace, words: Sequence[str], caught: Sequence[signal.Signals] = ()) -> int:
    """Run the command that the words name, and return its exit status; report an error. `caught` signals interrupt."""
    try:
        for number in caught:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, signal.default_int_handler)
        parser(words).parse_args(words, parsed)
        status: int = parsed.command(parsed)
        return status
    except (KeyboardInterrupt, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not isinstance(error.__cause__, KeyboardInterrupt):
            raise  # before Python 3.12, Ctrl-C while a class is made is the cause of a RuntimeError
        hint = str(error) if isinstance(error, Interrupted) else parsed.resume_hint
        stop = MatrixError("interrupted")
        stop.what += hint and f"; {hint}"
        stop.args = (stop.what,)  # whole: it is a command line
        return failed(parsed, stop, ExitStatus.INTERRUPTED)
    except MatrixError as error:
        status = failed(parsed, error, ExitStatus.MISTAKE)
    except OSError as error:
        if error.filename is None:
            raise
        problem = MatrixError(str(error.strerror), where=str(error.filename))
        status = failed(parsed, problem, ExitStatus.MISTAKE)
    except Exception as error:  # Python's own status would be 1, which means that something breaks
        import traceback

        traceback.print_exc()
        defect = MatrixError(f"a defect of megatrix: {type(error).__name__}", fix="report it with the lines above")
        status = failed(parsed, defect, ExitStatus.MISTAKE)
    return skip() if parsed.exit_code else status  # git bisect counts 2 as "bad"


def failed(parsed: argparse.Namespace, error: MatrixError, status: ExitStatus) -> ExitStatus:
    """Print an error to stderr, and with --json to stdout as well; return its exit status."""
    from matrix.show.terminal import json_object, warn

    warn(str(error))
    if parsed.json:
        print(json_object("error/1", [problem.to_json() for problem in error.errors]))
    return status


def split_own_command(arguments: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Return the arguments before --, and the user's own command after it, for the commands that take one."""
    if not {*arguments[:1]} & OWN or "--" not in arguments:
        return arguments, ()
    separator = list(arguments).index("--")
    return arguments[:separator], arguments[separator + 1 :]


def parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser for these arguments.

    It has the command that they name, with its options; if they name none, each command by name and summary only.
    """
    command_name = next((word for word in arguments if not word.startswith("-")), "")
    if command_name and command_name not in COMMANDS:
        raise MatrixError("no such command", got=command_name, fix=closest(command_name, COMMANDS, count=1))
    return _parser([command_name] if command_name else ())


def whole_parser() -> argparse.ArgumentParser:
    """Return the parser with the options of every command."""
    return _parser(COMMANDS)


def _parser(detailed: Collection[str]) -> argparse.ArgumentParser:
    top = Parser(prog="megatrix", **texts("megatrix"), formatter_class=Help)
    top.add_argument("--version", action="version", version=f"megatrix {__version__}")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    for name in detailed or COMMANDS:
        if detailed:
            add_parser(commands, name)
        else:
            commands.add_parser(name, help=described(name).text)
    return top


def add_parser(commands: Any, name: str) -> None:
    """Add a command with its arguments to the object that argparse's add_subparsers returned."""
    module = importlib.import_module(f"{__package__}.{name}")
    if hasattr(module, "add_parser"):
        module.add_parser(commands)
    else:
        add_command(commands, name, getattr(module, f"{name}_command"), words=getattr(module, "HELP_WORDS", {}))


def skip() -> int:
    """Return the exit status that makes `git bisect run` skip a commit."""
    from matrix.prove.bisection.noise import ProbeResult
    from matrix.prove.bisection.probe_session import EXIT_STATUS  # `run --exit-code`, which needs it, has imported it

    return EXIT_STATUS[ProbeResult.SKIP]
