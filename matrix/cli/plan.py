"""`megatrix plan`."""

from __future__ import annotations

import argparse
import json
from typing import Any

from matrix.catalog import loading
from matrix.cli import COMMANDS, choice
from matrix.errors import MatrixError
from matrix.planning import ci_jobs, statistics
from matrix.provision import configuration


def add_parser(commands: Any) -> None:
    """Add the command to the object that argparse's add_subparsers returned."""
    parser = commands.add_parser("plan", help=COMMANDS["plan"], description=COMMANDS["plan"])
    choice.add_cases(parser)
    parser.add_argument(
        "--stats",
        action="store_true",
        help="print counts instead: all possible cases, the cases of the night, and the reasons",
    )
    parser.add_argument("--format", choices=ci_jobs.FORMATS, help="print the night as jobs of a CI service instead")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    parser.set_defaults(command=plan_command)


def plan_command(parsed: argparse.Namespace) -> int:
    """Print the cases, their counts, or jobs for a CI service."""
    known = loading.load()
    configuration.load()
    planned, label = choice.chosen(known, parsed)
    if parsed.stats:
        if label != "night":
            raise MatrixError("--stats counts the whole night only", got=f"--stats with --{label}", fix="leave one out")
        if parsed.format:
            raise MatrixError("--stats and --format exclude each other", got="--stats --format", fix="leave one out")
        counted = statistics.statistics(known, planned, choice.levels_of(parsed))
        if parsed.json:
            for one in counted:
                print(json.dumps(vars(one)))
        else:
            print(statistics.render(counted))
        return 0
    if parsed.format:
        if label != "night":
            raise MatrixError("--format prints the night only", got=f"--format with --{label}", fix="use --within")
        print(json.dumps(ci_jobs.FORMATS[parsed.format](ci_jobs.jobs(planned, choice.levels_of(parsed)))))
        return 0
    for item in planned:
        if parsed.json:
            print(json.dumps(item.to_json()))
        else:
            print(f"{item.key}  [{item.expectation.value}]")
            for why in item.why:
                print(f"    {why}")
    if not parsed.json:
        print(f"{len(planned)} cases in {len({item.cell.id for item in planned})} cells")
    return 0
