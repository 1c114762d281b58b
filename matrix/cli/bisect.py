"""`megatrix bisect`."""

from __future__ import annotations

import argparse
import os
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from matrix.cli import places
from matrix.cli.usage import add_arguments, add_command, described
from matrix.ground.catalog import loading
from matrix.ground.errors import ExitStatus
from matrix.prove.bisection import user_command
from matrix.prove.bisection.axes import SIDE, WORDS
from matrix.prove.bisection.bisect_arguments import CHECKS_READ, BisectArguments, folder_of
from matrix.prove.bisection.probe_session import ProbeReport
from matrix.prove.bisection.procedure import BisectionEvents, Procedure, bisect_user_command
from matrix.prove.bisection.result_summary import BisectionSummary, summarize
from matrix.prove.execution import interrupt
from matrix.prove.store.paths import Paths, write_whole
from matrix.show.bisection import bisection_page, issue_text, render
from matrix.show.known import statement
from matrix.show.terminal import Prose, json_object, say, show, warn


def add_parser(commands: Any) -> None:
    """Add the command to the object that argparse's add_subparsers returned."""
    words = {"AXES": ", ".join(WORDS), "SIDE": SIDE, "CHECKS": str(CHECKS_READ)}
    parser = add_command(commands, "bisect", bisect_command, words=words)
    command_group = parser.add_argument_group(
        "a command of your own", "-- COMMAND ... runs in each cell; it passes at --good X and fails at --bad Y"
    )
    add_arguments(command_group, described("bisect").parts["of_a_command"])


def bisect_command(parsed: argparse.Namespace) -> int:
    """Print the answer; return 0 when it is unique, 1 when it is ambiguous."""
    interrupt.once()
    arguments, line = BisectArguments.of(vars(parsed)), unsaid if parsed.quiet else say
    events = BisectionEvents(unsaid if parsed.quiet else progress, line, warn)
    command = arguments.command(Path.cwd())
    catalog = loading.load()
    with ExitStack() as stack:
        if command is None:
            start = partial(places.engine_of, parsed=parsed, jobs=parsed.at_once)
            procedure = Procedure(arguments, catalog, start, events, stack)
            bisected, session = procedure.search(), procedure.session
        else:
            # Side by side, unless the command is timed. The ranks of a failure preload torch in every worker.
            workers = parsed.at_once if not command.metric and parsed.engine == "local" else 1

            def start_engine(full: Any) -> Any:
                return places.engine_of(full, parsed, parsed.at_once, workers, command.environ(os.environ, *full.site))

            bisected, session = bisect_user_command(arguments, command, catalog, start_engine, events, stack)
    summary = summarize(bisected, session)
    page = page_path(summary, parsed)
    issue = issue_text(summary, command.line, command.attached) if command else issue_text(summary)
    write_whole(page, bisection_page(summary, issue))
    write_whole(page.with_suffix(".md"), issue)
    files = {}
    if command:
        entry = user_command.draft(command, bisected, summary.headlines)
        path = command.write(folder_of(arguments, command) / "draft", entry, draft=True)
        files = {"draft": str(path), "issue": str(page.with_suffix(".md"))}
    if parsed.json:
        print(json_object("bisect/1", [{**summary.to_json(), **files}]))
    else:
        catalogued = () if command or summary.attribution else statement(bisected.subject.failure)
        lines = (f"  {name}: {path}" for name, path in files.items())
        show(*render(summary, str(page)), *(Prose(text, 2) for text in catalogued), *lines, quiet=parsed.quiet)
    return ExitStatus.BAD if summary.ambiguous else ExitStatus.GOOD


def unsaid(_: object) -> None:
    """Print nothing, with -q."""


def progress(probe: ProbeReport) -> None:
    """Print the result of a probe to standard error."""
    say(probe.line)


def page_path(summary: BisectionSummary, parsed: argparse.Namespace) -> Path:
    """Return the path of the page: by the two stacks, or by the axis and what it holds fixed."""
    name = f"{parsed.good}-{parsed.bad}"
    if not summary.attribution:
        ((axis, change),) = summary.changes.items()
        name = f"by-{axis}-{'-'.join(f'{side}-{value}' for side, value in change.fixed.items())[-80:]}"
    name = f"{summary.failure}-{summary.case}-{name}"
    safe = "".join(letter if letter.isalnum() or letter in ".-+" else "_" for letter in name)
    return Paths(parsed.out).bisections / f"{safe}.html"
