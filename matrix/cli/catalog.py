"""`megatrix catalog`: tools for authors of catalog entries."""

from __future__ import annotations

import argparse
import json
import shlex
from collections import Counter
from textwrap import indent
from typing import Any, Final

from matrix.ask.check.log_reading import read_log
from matrix.cli import Command, results
from matrix.cli.usage import add_command, described
from matrix.cli.verify import keep, verify_command
from matrix.ground.catalog import loading
from matrix.ground.catalog.folders import FAILURES, SITE, new_root, site_folders
from matrix.ground.catalog.loading import NIGHT_FILE
from matrix.ground.errors import ExitStatus, counted
from matrix.prove.authoring import draft, entry, examples, overview
from matrix.prove.store import stored_run as runs
from matrix.prove.store.paths import Paths, is_night, write_whole
from matrix.show import known
from matrix.show.terminal import json_object, paragraphs, plain, show, table


def add_parser(commands: Any) -> None:
    """Add the command to the object that argparse's add_subparsers returned."""
    actions = add_command(commands, "catalog", list_command).add_subparsers(required=True, metavar="ACTION")
    for name, function in ACTIONS.items():
        add_command(actions, name, function, Command(**described("catalog").parts[name]))


def new_command(parsed: argparse.Namespace) -> int:
    """Write the files of a new failure, and print the next step."""
    root = new_root(parsed.into)
    folder = draft.create(parsed.id, root, read_log, contract=parsed.contract, log=parsed.log)
    left = "replace every TODO, then: " if [*entry.todo_problems(folder)] else ""
    site = "" if root == FAILURES or root in site_folders() else f"{SITE}={shlex.quote(str(root))} "
    print(plain(f"{folder}: {left}{site}megatrix catalog verify {parsed.id}"))
    return ExitStatus.GOOD


def check_command(parsed: argparse.Namespace) -> int:
    """Print the problems of each entry, and what a draft leaves to do; return 1 where there are any."""
    drafts = {id: path for id, path in loading.drafts().items() if id in parsed.id or not parsed.id}
    for id, path in drafts.items():
        left = "\n".join(map(str, entry.todo_problems(path.parent)))
        show(table([(f"{id}:", "a draft, which no other command reads")]), *paragraphs(indent(left, "  ")))
    if drafts and drafts.keys() >= {*parsed.id}:
        return ExitStatus.BAD
    catalog = loading.load()
    planned = entry.whole_night(catalog)
    counts = Counter(case.failure for case in planned)
    status = ExitStatus.BAD if drafts else ExitStatus.GOOD
    for id in [id for id in parsed.id or [failure.id for failure in catalog.failures] if id not in drafts]:
        failure = catalog.failure(id)
        problems = entry.problems(catalog, failure, planned)
        status = ExitStatus.BAD if problems else status
        count = counted(len(problems), "problem") if problems else "no problems"
        sums = f"{count}; {counted(len(failure.case), 'case')}, {counts[failure.id]} in a night"
        show(table([(f"{failure.id}:", sums)]), *paragraphs(indent("\n".join(map(str, problems)), "  ")))
    return status


def keep_command(parsed: argparse.Namespace) -> int:
    """Write the new examples of a run, with the counts of a night, and print their paths; return 1 where all exist."""
    catalog = loading.load()
    run = parsed.run or results.newest(parsed.out)
    records = runs.read(Paths(parsed.out).run(run)).records
    failures = [catalog.failure(id) for id in parsed.failure] if parsed.failure else catalog.failures
    status = ExitStatus.BAD
    for failure in failures:
        paths = keep(failure, records)
        if is_night(run) and (evidence := examples.night_evidence(failure, records, run)):
            paths.append(failure.folder / NIGHT_FILE)
            write_whole(paths[-1], evidence)
        for path in paths:
            print(plain(str(path)))
            status = ExitStatus.GOOD
    return status


def list_command(parsed: argparse.Namespace) -> int:
    """Print each topic with its question and its failures, then the drafts."""
    for topic, failures in overview.by_topic(loading.load()).items():
        show(*known.topic_table(topic, failures))
    if drafts := loading.drafts():
        rows = [(id, sum(1 for _ in entry.todo_problems(path.parent)), path) for id, path in drafts.items()]
        show(f"Drafts ({len(rows)}). No other command reads them: what is left to do?")
        show(table([(id, f"lines with TODO: {count}", str(path)) for id, count, path in rows], indent=2, gap=2))
    return ExitStatus.GOOD


def export_command(parsed: argparse.Namespace) -> int:
    """Print every entry, or the schema of an entry's file."""
    if parsed.schema:
        print(json.dumps(entry.entry_schema(), indent=1))
        return ExitStatus.GOOD
    print(json_object("catalog/1", map(overview.failure_to_json, loading.load().failures)))
    return ExitStatus.GOOD


ACTIONS: Final = {
    "new": new_command,
    "check": check_command,
    "verify": verify_command,
    "keep": keep_command,
    "list": list_command,
    "export": export_command,
}
