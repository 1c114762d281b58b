"""`megatrix advise`: what a job will need before it starts; one topic per preflight that names one."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from matrix.cli import COMMANDS, Command
from matrix.cli.options import add_options, given
from matrix.cli.usage import add_command
from matrix.contract import calling
from matrix.execution import preflights
from matrix.kit.options import read
from matrix.kit.preflight import Machine, TrainingJob


def add_parser(commands: Any) -> None:
    """Add the command to the object that argparse's add_subparsers returned."""
    topics = add_command(commands, "advise").add_subparsers(required=True, metavar="TOPIC")
    for one in preflights.installed():
        if one.topic:
            required = " ".join(f"--{option.name} {option.metavar}" for option in one.options if option.required)
            described = Command(one.about, COMMANDS["advise"].status, f"advise {one.topic} {required}")
            topic = add_command(topics, one.topic, described)
            add_options(topic, one.options)
            topic.add_argument("--json", action="store_true", help="print one JSON object")
            topic.set_defaults(command=advise_command, preflight=one)


def advise_command(parsed: argparse.Namespace) -> int:
    """Print the report of a preflight; return 1 when the job will fail, else 0."""
    preflight = parsed.preflight
    arguments, machine = read(preflight.options, given(parsed, preflight.options))
    report = preflight.examine(TrainingJob(arguments=arguments), Machine(**machine), calling)
    sys.stdout.write((json.dumps(report.data) if parsed.json else report.text) + "\n")
    return int(report.fails)
