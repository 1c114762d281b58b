"""`megatrix compat`."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from matrix.catalog import loading
from matrix.catalog.failure import Expectation
from matrix.catalog.versions import NONE
from matrix.check import compat
from matrix.cli import out
from matrix.cli.usage import add_command
from matrix.errors import MatrixError
from matrix.report.compat import render
from matrix.report.terminal import paragraphs, show, warn
from matrix.store.history import with_history
from matrix.store.paths import Paths


def add_parser(commands: Any) -> None:
    """Add the command to the object that argparse's add_subparsers returned."""
    parser = add_command(commands, "compat")
    parser.add_argument("stack", metavar="STACK", nargs="+", help=f"versions as AXIS=VALUE: {compat.FORM}")
    out.add_out(
        parser,
        "output folder, whose history has the levels that ran here (default: $MEGATRIX_OUT, or reports/out)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    parser.set_defaults(command=compat_command)


def compat_command(parsed: argparse.Namespace) -> int:
    """Print the known failures of the stack; return 1 where one is expected to break."""
    known = loading.load()
    stack = compat.parse_stack(known, " ".join(parsed.stack))
    path = Paths(parsed.out).history
    levels = with_history(path, lambda history: history.levels(), warn) if os.access(path, os.F_OK) else {}
    listed = compat.compat(known, stack, levels)
    unlisted, why = [], ""
    if NONE not in (stack.mcore, stack.te):
        try:
            unlisted = compat.unlisted(known, stack)
        except MatrixError as error:
            why = f"level contract can't judge this stack: {error.brief}"
    if parsed.json:
        for one in [*(one.to_json() for one in listed), *(finding.to_json() for finding in unlisted)]:
            print(json.dumps(one))
    else:
        show(*render(listed))
        if NONE not in (stack.mcore, stack.te):
            found = (why or compat.render_findings(unlisted, stack)).rstrip()
            show("", *paragraphs(found))
    return 1 if any(one.expectation is Expectation.BROKEN for one in listed) else 0
