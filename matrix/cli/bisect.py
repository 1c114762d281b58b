"""`megatrix bisect`."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from matrix.cli import places
from matrix.cli.bisect_options import add_options, arguments_of
from matrix.cli.usage import add_command
from matrix.ground.catalog import loading
from matrix.ground.errors import ExitStatus
from matrix.ground.verdicts.text import visible
from matrix.prove.bisection import own
from matrix.prove.bisection.bisect_arguments import folder_of
from matrix.prove.bisection.noise import ProbeResult
from matrix.prove.bisection.probe_session import ProbeReport
from matrix.prove.bisection.procedure import BisectionEvents, Procedure
from matrix.prove.bisection.procedure import bisect_command as bisect_own
from matrix.prove.bisection.result_summary import BisectionSummary, summarize
from matrix.prove.execution import interrupt
from matrix.prove.store.paths import Paths, write_whole
from matrix.show.bisection import bisection_page, issue_text, render
from matrix.show.finding_sources import of_bisection
from matrix.show.findings import FORMATS
from matrix.show.known import statement
from matrix.show.terminal import Prose, json_object, show, warn


def add_parser(commands: Any) -> None:
    """Add the command to the object that argparse's add_subparsers returned."""
    parser = add_command(commands, "bisect")
    add_options(parser)
    parser.set_defaults(command=bisect_command, resume_hint="continue with the same command line")


def bisect_command(parsed: argparse.Namespace) -> int:
    """Print the answer; return 0 when it is unique, 1 when it is ambiguous."""
    interrupt.once()
    arguments, events = arguments_of(parsed), BisectionEvents(progress, say, warn)
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

            bisected, session = bisect_own(arguments, command, catalog, start_engine, events, stack)
    summary = summarize(bisected, session)
    page = page_path(summary, parsed)
    issue = issue_text(summary, command.line, command.attached) if command else issue_text(summary)
    write_whole(page, bisection_page(summary, issue))
    write_whole(page.with_suffix(".md"), issue)
    files = {}
    if command:
        entry = own.draft(command, bisected, summary.headlines)
        path = command.write(folder_of(arguments, command) / "draft", entry, draft=True)
        files = {"draft": str(path), "issue": str(page.with_suffix(".md"))}
    if parsed.json:
        print(json_object("bisect/1", [{**summary.to_json(), **files}]))
    elif parsed.format:
        print(FORMATS[parsed.format](of_bisection(summary)))
    else:
        catalogued = () if command or summary.attribution else statement(bisected.subject.failure)
        show(*render(summary, str(page)), *(Prose(line, 2) for line in catalogued))
        show(*(f"  {name}: {path}" for name, path in files.items()))
    return ExitStatus.BAD if summary.ambiguous else ExitStatus.GOOD


def say(text: str) -> None:
    """Print a line to standard error."""
    print(visible(text), file=sys.stderr, flush=True)


def progress(probe: ProbeReport) -> None:
    """Print the result of a probe to standard error."""
    source = "known" if probe.known else f"{probe.seconds:.1f} s"
    runs = probe.seen if isinstance(probe.seen, tuple) else (probe.seen,)
    result = runs[0].value if isinstance(runs[0], ProbeResult) else "ran"
    source += f", {len(runs)} runs" * (len(runs) > 1)
    say(f"{result:4}  {probe.label}  [{source}]  {probe.why}")


def page_path(summary: BisectionSummary, parsed: argparse.Namespace) -> Path:
    """Return the path of the page: by the two stacks, or by the axis and what it holds fixed."""
    name = f"{parsed.good}-{parsed.bad}"
    if not summary.attribution:
        ((axis, change),) = summary.changes.items()
        name = f"by-{axis}-{'-'.join(f'{side}-{value}' for side, value in change.fixed.items())[-80:]}"
    name = f"{summary.failure}-{summary.case}-{name}"
    safe = "".join(letter if letter.isalnum() or letter in ".-+" else "_" for letter in name)
    return Paths(parsed.out).bisections / f"{safe}.html"
