"""`megatrix compat`."""

from __future__ import annotations

import argparse
import json
from typing import Any

from matrix.catalog import loading
from matrix.catalog.failure import Expectation
from matrix.catalog.versions import NONE
from matrix.check import compat
from matrix.cli import COMMANDS, out
from matrix.errors import MatrixError
from matrix.store.history import History
from matrix.store.paths import Paths


def add_parser(commands: Any) -> None:
    """Add the command to what argparse's add_subparsers returned."""
    parser = commands.add_parser("compat", help=COMMANDS["compat"], description=COMMANDS["compat"])
    parser.add_argument("stack", metavar="STACK", nargs="+", help=compat.FORM)
    out.add_out(parser, "output folder, for its history")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    parser.set_defaults(command=compat_command)


def compat_command(parsed: argparse.Namespace) -> int:
    """Print what is known of the stack; return 1 where something is known to break."""
    known = loading.load()
    stack = compat.parse_stack(known, " ".join(parsed.stack))
    path = Paths(parsed.out).history
    levels = {}
    if path.is_file():
        with History(path) as history:
            levels = dict(history.levels())
    found_known = compat.compat(known, stack, levels)
    found, why = [], ""
    if NONE not in (stack.mcore, stack.te):
        try:
            found = compat.unlisted(known, stack)
        except MatrixError as error:
            why = f"level contract says nothing: {error.brief}"
    if parsed.json:
        for one in [*(one.to_json() for one in found_known), *(finding.to_json() for finding in found)]:
            print(json.dumps(one))
    else:
        print(compat.render(found_known))
        if NONE not in (stack.mcore, stack.te):
            print(f"\n{why or compat.render_findings(found, stack)}".rstrip())
    return 1 if any(one.expectation is Expectation.BROKEN for one in found_known) else 0
