"""`megatrix completion`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, Final

from matrix.ground.catalog import loading
from matrix.ground.catalog.model import Catalog
from matrix.ground.catalog.stack import MCORE, TE, TORCH, short
from matrix.ground.errors import ExitStatus, MatrixError

FILES: Final = ("LOG", "WHAT", "FILE", "DIR", "FOLDER", "PATH", "CLONE", "PROJECT")  # metavars of paths


def completion_command(parsed: argparse.Namespace) -> int:
    """Print a script that completes commands, options and their values; it starts no process of its own."""
    from matrix.cli.main import whole_parser  # which imports this module

    try:
        import shtab
    except ImportError:
        raise MatrixError("shell completion needs the package shtab", fix="pip install shtab") from None
    parser = whole_parser()
    offer(parser, values_of(loading.load()), shtab.FILE)
    print(shtab.complete(parser, shell=parsed.shell))
    return ExitStatus.GOOD


def values_of(catalog: Catalog) -> Mapping[str, Sequence[str]]:
    """Return the values of an argument by its name, or by its command and name."""
    ids = [str(failure.id) for failure in catalog.failures]
    names = ("failure", "break_", "check id", "verify id", "show what")
    packages = (MCORE, TE, TORCH)
    releases = {short(name): [str(release.version) for release in catalog.releases(name)] for name in packages}
    others = {"base": [*catalog.bases], "driver": [str(driver.branch) for driver in catalog.drivers]}
    return {**dict.fromkeys(names, ids), **releases, **others, "upgrade": [*releases, "base"]}


def offer(parser: argparse.ArgumentParser, values: Mapping[str, Sequence[str]], file: Any) -> None:
    """Give the arguments of a parser, which then parses nothing, their values for shtab; paths are paths."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                offer(command, values, file)
        elif action.nargs != 0 and not action.choices:
            known = values.get(f"{parser.prog.split()[-1]} {action.dest}") or values.get(action.dest)
            if known:
                action.choices = known
            elif action.metavar in FILES or action.dest == "out":
                action.complete = file  # type: ignore[attr-defined]
