"""`megatrix run`."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
from dataclasses import replace
from functools import partial
from typing import Any, Final

from matrix.cli import places, results
from matrix.cli.case_options import add_run, command_words, requested
from matrix.cli.usage import add_command
from matrix.ground.catalog import loading
from matrix.ground.catalog.model import Catalog
from matrix.ground.errors import ExitStatus, Interrupted
from matrix.prove.authoring import claims
from matrix.prove.bisection.probe_session import exit_code
from matrix.prove.execution import interrupt, runner
from matrix.prove.provision import host
from matrix.prove.store import stored_run
from matrix.prove.store.history import History
from matrix.show import output
from matrix.show.screen import Screen
from matrix.show.terminal import json_object, warn

# Options of pytest, which lines of the catalog took when they were pytest in one environment.
OF_PYTEST: Final = {"--pdb": "megatrix debug CASE", "-x": "leave it out: --lf repeats the red cases of a run"}


def add_parser(commands: Any) -> None:
    """Add the command to the object that argparse's add_subparsers returned."""
    parser = add_command(commands, "run")
    parser.instead = OF_PYTEST
    add_run(parser)
    parser.set_defaults(command=run_command)


def run_command(parsed: argparse.Namespace) -> int:
    """Run the cases and print the summary; return the exit status of the run (docs/runs.md)."""
    interrupt.once()
    begun: list[str] = []  # the name of the run, once it can be resumed
    try:
        if parsed.results and (lack := results.lacking_gpu()):
            return nothing(lack, parsed)
        catalog = loading.load()
        request = requested(catalog, parsed)
        return reported(executed(request, catalog, parsed, begun), request, parsed)
    except KeyboardInterrupt:
        raise Interrupted(f"continue with: {command_line(parsed, *begun)}") from None


def nothing(lack: str, parsed: argparse.Namespace) -> ExitStatus:
    """Print why nothing was run."""
    warn(f"not run: {lack}")
    if parsed.json:
        print(json_object("records/1", ()))
    return ExitStatus.NOTHING


def executed(
    request: runner.Request, catalog: Catalog, parsed: argparse.Namespace, begun: list[str]
) -> stored_run.Night:
    """Run a request where the options say, with its progress on the screen, and return the night.

    When it has ended, or was interrupted, `begun` gets its name.
    """
    usual = 1 if parsed.engine == "slurm" else places.workers_for(request.planned, host.look())
    workers = parsed.workers or usual
    engine, site = places.engine_of(catalog, parsed, parsed.jobs, workers, request.environ)
    if parsed.pull:
        places.pull(catalog, request.planned, parsed, warn)
    request = replace(request, site=site)
    screen = Screen(len(request.planned))

    def report(stored: stored_run.StoredRun, history: History) -> stored_run.Night:
        if not parsed.break_:  # such a run has its own folder
            begun.append(stored.folder.name)
        return output.render(stored, request.out, history, catalog)

    if parsed.json:  # stdout is one JSON object, and the journal of the run has each record as it ends
        return runner.execute(request, catalog, engine, runner.Events(warn=warn, ended=report))
    line = partial(results.opening, catalog, engine, request.planned, (parsed.jobs, workers))
    events = runner.Events(screen.show, screen.begin, warn, report, lambda *cases: screen.open(cases[0], line(*cases)))
    with screen.animated():
        return runner.execute(request, catalog, engine, events)


def reported(night: stored_run.Night, request: runner.Request, parsed: argparse.Namespace) -> int:
    """Print what a run showed, and return its exit status."""
    say = warn if parsed.json else print
    if parsed.json:
        print(json_object("records/1", (record.to_json() for record in night.records)))
    else:
        results.print_summary(night, request.out)
    if parsed.results:
        say(f"results: {results.write_gpu_results(parsed.results, night)}")
    if parsed.break_:
        broken, text = claims.outcome(night.records)
        say(text)
        return ExitStatus.GOOD if broken else ExitStatus.BAD
    results.add_step_summary(parsed.out, night.run)
    if parsed.exit_code:
        return exit_code(night.records)
    status = runner.exit_status(night, whole=bool(parsed.smoke))
    if parsed.smoke and status is ExitStatus.NOTHING:
        warn("not every case of the smoke ran: it shows nothing")
    return status


def command_line(parsed: argparse.Namespace, resume: str = "") -> str:
    """Return the command that makes the same request, or resumes this run, by the name that started this process."""
    command = os.environ.get("MEGATRIX_COMMAND") or ("megatrix" if shutil.which("megatrix") else "python3 -m matrix")
    return f"{command} {shlex.join(command_words(parsed, resume))}"
