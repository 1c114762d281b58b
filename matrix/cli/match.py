"""`megatrix match`."""

from __future__ import annotations

import argparse
from typing import Any

from matrix.ask.check.kind_answer import answer
from matrix.ask.check.log_reading import read_log
from matrix.cli.command_options import add_json
from matrix.cli.usage import add_command
from matrix.ground.catalog.kinds import kind_table
from matrix.ground.errors import ExitStatus
from matrix.show import log_matches
from matrix.show.terminal import json_object, show


def add_parser(commands: Any) -> None:
    """Add the command to the object that argparse's add_subparsers returned."""
    parser = add_command(commands, "match")
    parser.add_argument(
        "logs",
        metavar="LOG",
        nargs="+",
        help="log file of any size and encoding, also gzip; a folder with the logs of the ranks; - for standard input; "
        "several of them are the logs of one job",
    )
    add_json(parser, "match")
    parser.set_defaults(command=match_command)


def match_command(parsed: argparse.Namespace) -> int:
    """Print the known failures and the kinds of failure in the logs; return 1 where nothing is answered."""
    matched = read_log(*parsed.logs)
    answers = [answer(sighting, kind_table(), matched.versions) for sighting in matched.kinds]
    if parsed.json:
        print(json_object("match/1", **log_matches.to_json(matched, answers)))
    else:
        show(*log_matches.render(matched, answers, "LOG" if parsed.logs == ["-"] else parsed.logs[0]))
    named = any(standstill.ranks for standstill in matched.standstills)
    answered = any(one.facts for one in answers)
    return ExitStatus.GOOD if matched.known or answered or named else ExitStatus.BAD
