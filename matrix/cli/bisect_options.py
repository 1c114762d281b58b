"""The options of `megatrix bisect`, and the request that they make."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any, Final

from matrix.cli import places
from matrix.cli.command_options import add_findings, add_out
from matrix.ground.catalog.failure import Level
from matrix.prove.bisection.axes import WORDS
from matrix.prove.bisection.bisect_arguments import CHECKS_READ, BisectArguments
from matrix.prove.bisection.question import SIDE, BisectionQuestion

OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "--axis": {
        "metavar": "AXIS",
        "help": f"what changes: {', '.join(WORDS)} or another package; without it, two stacks are compared",
    },
    "--good": {"default": "", "metavar": "X", "help": "a point that passes; without --axis, a stack"},
    "--bad": {"default": "", "metavar": "X", "help": "a point that fails, or a stack (default: both ends of the axis)"},
    "--repo": {"metavar": "CLONE", "help": "bisect the commits of this clone (axis mcore, te or writer)"},
    "--case": {"metavar": "NAME", "help": "a case of the failure, such as pp2 (default: the first)"},
    "--level": {
        "choices": [level.value for level in Level],
        "help": "level to probe at (default: the least demanding one of the case)",
    },
    "--base": {"metavar": "BASE", "help": "base of every point"},
    "--torch": {"metavar": "V", "help": "use the base with this torch"},
    "--mcore": {"metavar": "V", "help": f"megatron-core of every point: {SIDE}"},
    "--te": {"metavar": "V", "help": f"Transformer Engine of every point: {SIDE}"},
    "--writer": {"metavar": "V", "help": f"megatron-core that writes the checkpoint: {SIDE}"},
    "--driver": {"metavar": "V", "help": "driver of every point"},
    "--pin": {
        "action": "append",
        "default": [],
        "metavar": "NAME==V",
        "help": "lay this package over every point; may be repeated",
    },
    "--compile": {
        "action": "store_true",
        "help": "build Transformer Engine's commits with their extension; needs nvcc",
    },
    "--at-once": {"type": int, "default": 1, "metavar": "K", "help": "points to probe at a time (default: 1)"},
    "--shows": {
        "type": float,
        "default": 1.0,
        "metavar": "P",
        "help": "probability that one run shows the failure, for flaky failures (default: 1)",
    },
    "--confidence": {
        "type": float,
        "default": 0.95,
        "metavar": "C",
        "help": "report no answer below this confidence (default: 0.95)",
    },
    "--checks": {
        "type": int,
        "metavar": "N",
        "help": f"extra points to check at the end (default: {CHECKS_READ} at level contract, else 0)",
    },
}


def share(text: str) -> float:
    """Return the value of "5%" or "0.05". Raises ValueError, which argparse reports."""
    value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    if not 0 < value < 10:
        raise ValueError(text)
    return value


OF_A_COMMAND: Final[dict[str, dict[str, Any]]] = {
    "--signature": {
        "default": "",
        "metavar": "FILE",
        "help": "what is bad: [[signature]] tables (default: learned from Y)",
    },
    "--log": {"default": "", "metavar": "FILE", "help": "what is bad: the failure that this log ends with"},
    "--metric": {"default": "", "metavar": "REGEX", "help": "what is bad: a number that the command prints"},
    "--worse-than": {
        "type": share,
        "default": 0.0,
        "metavar": "5%%",
        "help": "the difference of the number that matters",
    },
    "--repeats": {"type": int, "default": 1, "metavar": "N", "help": "runs of the command per probe, with --metric"},
    "--override": {
        "action": "append",
        "default": [],
        "metavar": "NAME",
        "help": "ignore the ranges that packages declare for this one; may be repeated",
    },
    "--shared-folder": {"action": "store_true", "help": "run every point in this folder itself, not in a copy"},
    "--deadline": {"type": int, "default": 0, "metavar": "S", "help": "seconds for one run (default: 120)"},
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `megatrix bisect`."""
    parser.add_argument(
        "failure", metavar="FAILURE", nargs="?", default="", help="id of a failure in the catalog; or -- COMMAND ..."
    )
    command_group = parser.add_argument_group(
        "a command of your own", "-- COMMAND ... runs in each cell; it passes at --good X and fails at --bad Y"
    )
    for group, options in ((parser, OPTIONS), (command_group, OF_A_COMMAND)):
        for name, option in options.items():
            group.add_argument(name, **option)
    parser.add_argument("--no-cache", action="store_true", help="probe again, ignoring stored results")
    places.add_places(parser)
    add_out(parser)
    add_findings(parser, "bisect")


def arguments_of(parsed: argparse.Namespace) -> BisectArguments:
    """Return the parsed arguments without those that choose where cells run."""
    question: dict[str, Any] = {field.name: getattr(parsed, field.name) or "" for field in fields(BisectionQuestion)}
    return BisectArguments(
        BisectionQuestion(**question),
        parsed.out,
        at_once=parsed.at_once,
        shows=parsed.shows,
        confidence=parsed.confidence,
        checks=parsed.checks,
        fresh=parsed.no_cache,
        signature=parsed.signature,
        log=parsed.log,
        metric=parsed.metric,
        worse_than=parsed.worse_than,
        repeats=parsed.repeats,
        deadline=parsed.deadline,
        shared_folder=parsed.shared_folder,
        override=tuple(parsed.override),
    )
