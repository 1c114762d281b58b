"""`megatrix contract`."""

from __future__ import annotations

import argparse
import json
from typing import Any

from matrix.cli.usage import add_command
from matrix.contract import finding as findings
from matrix.contract import reading, recording, table
from matrix.contract.recording import MCORE, SUFFIX, TE
from matrix.report.terminal import paragraphs, show

SIDE = f"a recorded version, tag or commit, a *{SUFFIX} file, a wheel, a folder, or PATH@REV (default: all releases)"


def add_parser(commands: Any) -> None:
    """Add the command to the object that argparse's add_subparsers returned."""
    parser = add_command(commands, "contract")
    parser.add_argument("--mcore", metavar="V", help=f"Megatron-LM: {SIDE}")
    parser.add_argument("--te", metavar="V", help=f"Transformer Engine: {SIDE}")
    parser.add_argument("--json", action="store_true", help="print one JSON object per finding and line")
    parser.set_defaults(command=contract_command)


def contract_command(parsed: argparse.Namespace) -> int:
    """Print the findings; return 1 where both sides are named and a call surely breaks or is misbound, else 0.

    Over many pairs some call always breaks, so the exit status is 0 there.
    """
    consumers = [reading.calls_of(text) for text in ([parsed.mcore] if parsed.mcore else recording.released(MCORE))]
    offers = [reading.surface_of(text) for text in ([parsed.te] if parsed.te else recording.released(TE))]
    found: list[findings.Finding] = []
    for calls in consumers:
        for surface in offers:
            new = findings.find(calls, surface)
            found += new
            if parsed.json:
                for one in new:
                    print(json.dumps(one.to_json()))
    if not parsed.json:
        show(*paragraphs(table.table(found, [one.version for one in consumers], [one.version for one in offers])))
    broken = any(one.kind in (findings.FindingKind.DEFINITE, findings.FindingKind.MISBOUND) for one in found)
    return int(broken and bool(parsed.mcore and parsed.te))
