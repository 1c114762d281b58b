"""`megatrix catalog`: the tools of an author of failures."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from typing import Any

from matrix.authoring import entry, examples, export, skeleton
from matrix.catalog.folders import FAILURES
from matrix.catalog.loading import load
from matrix.cli import COMMANDS, results
from matrix.cli.out import add_out
from matrix.planning.covering import pairwise
from matrix.planning.night import night
from matrix.store import night as runs
from matrix.store.paths import Paths, write_whole


def add_parser(commands: Any) -> None:
    """Add the command to what argparse's add_subparsers returned."""
    parser = commands.add_parser("catalog", help=COMMANDS["catalog"], description=COMMANDS["catalog"])
    topics = parser.add_subparsers(required=True, metavar="ACTION")
    new = topics.add_parser("new", help="Write the files of a new failure.")
    new.add_argument("id", metavar="ID", help="small letters, digits and -: my-failure")
    new.add_argument("--contract", action="store_true", help="a call into Transformer Engine, without code")
    new.set_defaults(command=new_command)
    check = topics.add_parser("check", help="Check one entry: function, arguments, rules, examples.")
    check.add_argument("id", metavar="ID", nargs="*", help="the entries to check (all)")
    check.set_defaults(command=check_command)
    keep = topics.add_parser("keep", help="Write examples of what a run reproduced, and their look-alikes.")
    keep.add_argument("run", metavar="RUN", nargs="?", default="", help="a run's id (the newest)")
    keep.add_argument("--failure", metavar="ID", action="append", help="only of this failure")
    add_out(keep)
    keep.set_defaults(command=keep_command)
    exporting = topics.add_parser("export", help="Print the catalog as one JSON object.")
    exporting.set_defaults(command=export_command)


def new_command(parsed: argparse.Namespace) -> int:
    """Write the files of a new failure and print what comes next."""
    folder = skeleton.create(parsed.id, FAILURES, contract=parsed.contract)
    print(f"{folder}: replace every TODO, then: megatrix catalog check {parsed.id}")
    return 0


def check_command(parsed: argparse.Namespace) -> int:
    """Print what is wrong with each entry; return 1 where something is."""
    known = load()
    planned = night(known, pairwise)
    counts = Counter(item.failure for item in planned)
    wrong = 0
    for id in parsed.id or [failure.id for failure in known.failures]:
        failure = known.failure(id)
        found = entry.problems(known, failure, planned)
        wrong += len(found)
        print(
            f"{failure.id}: {len(found) or 'no'} problems; {len(failure.case)} cases, {counts[failure.id]} in a night"
        )
        for problem in found:
            print(f"  {problem}".replace("\n", "\n  "))
    return 1 if wrong else 0


def keep_command(parsed: argparse.Namespace) -> int:
    """Write the examples of a run that are not there yet and print their paths; return 1 where there is none."""
    known = load()
    ended = runs.read(Paths(parsed.out).run(parsed.run or results.newest(parsed.out)))
    wanted = [known.failure(id) for id in parsed.failure] if parsed.failure else known.failures
    written = 0
    for failure in wanted:
        for example in examples.keep(failure, ended.records):
            path = failure.folder / example.path
            if not path.exists():
                write_whole(path, example.text)
                print(path)
                written += 1
    return 0 if written else 1


def export_command(parsed: argparse.Namespace) -> int:
    """Print every entry."""
    print(json.dumps(export.catalog_to_json(load()), indent=1, ensure_ascii=False))
    return 0
