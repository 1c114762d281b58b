"""`megatrix run`."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from matrix.cli import places, results
from matrix.cli.case_options import HELP_WORDS, command_words, requested
from matrix.cli.usage import add_command
from matrix.ground.catalog import loading
from matrix.ground.catalog.model import Catalog
from matrix.ground.errors import ExitStatus, Interrupted, counted
from matrix.ground.verdicts.record import SILENT, Record
from matrix.ground.verdicts.text import one_line
from matrix.prove.authoring import claims
from matrix.prove.bisection.probe_session import exit_code
from matrix.prove.execution import interrupt, runner
from matrix.prove.provision import host
from matrix.prove.store import stored_run
from matrix.prove.store.history import History
from matrix.show.run_summary import styled, without_result
from matrix.show.site import render
from matrix.show.terminal import Part, json_object, show, table, text, warn
from matrix.show.words import is_red, label, verdict_reason

# Options of pytest, which lines of the catalog took when they were pytest in one environment.
OF_PYTEST: Final = {
    "--pdb": "pytest tests/failures/ID -k CASE --pdb",
    "-x": "leave it out: --lf repeats the red cases of a run",
}


def add_parser(commands: Any) -> None:
    """Add the command to the object that argparse's add_subparsers returned."""
    parser = add_command(commands, "run", run_command, words=HELP_WORDS)
    parser.instead = OF_PYTEST


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
    request: runner.Request, catalog: Catalog, parsed: argparse.Namespace, begun: list[str], *, pages: bool = True
) -> stored_run.Night:
    """Run a request where the options say, with its progress on the screen, and return the night.

    When it has ended, or was interrupted, `begun` gets its name. Without `pages` it writes none.
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
        return render(stored, request.out, history, catalog) if pages else stored_run.added(stored, history)

    if parsed.json or parsed.quiet:  # the journal of the run has each record as it ends
        return runner.execute(request, catalog, engine, runner.Events(warn=warn, ended=report))
    lines = partial(results.opening, catalog, engine, request.planned, (parsed.jobs, workers))
    events = runner.Events(screen.show, warn, report, lambda *cases: screen.open(cases[0], *lines(*cases)))
    return runner.execute(request, catalog, engine, events)


def reported(night: stored_run.Night, request: runner.Request, parsed: argparse.Namespace) -> int:
    """Print what a run showed, and return its exit status."""
    say = warn if parsed.json else print
    if parsed.json:
        print(json_object("records/1", (record.to_json() for record in night.records)))
    else:
        results.print_summary(night, request.out, quiet=parsed.quiet)
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


STATED_S: Final = 60.0  # s between statements of the remaining time


class Screen:
    """Shows a run of `total` cases on stdout."""

    def __init__(self, total: int, now: Callable[[], float] = time.monotonic) -> None:
        self._total, self._done, self._ran, self._now = total, 0, 0, now
        self._began = self._stated = now()

    def show(self, record: Record) -> None:
        """Print the line of a case that ended, and each minute how long the others take."""
        show(self.line(record))
        if record.verdict in SILENT or record.cached_from:  # the remaining time is that of cases that run
            return
        self._ran += 1
        if self._now() - self._stated >= STATED_S:
            self._stated = self._now()
            seconds = (self._total - self._done) * (self._stated - self._began) / self._ran
            show(f"{self._done} of {self._total} cases ended, about {counted(seconds / 60, 'minute')} left")

    def open(self, records: Sequence[Record], *lines: Part) -> None:
        """Count cases as done that can't run; print a line for each reason, then these."""
        self._done += len(records)
        show(*without_result(records), *lines)

    def line(self, record: Record) -> Part:
        """Count the case as done; return what it is and how it ended, and the reason of a red one below.

        [ 3/24] dud-assertion tp2 cpu torch-2.4.0/mcore-0.8.0 reproduced 1.1 s
        """
        self._done += 1
        count = f"[{self._done:>{len(str(self._total))}}/{self._total}]"
        duration = f"from {one_line(record.cached_from)}" if record.cached_from else f"{record.outcome.seconds:.1f} s"
        case = f"{record.failure} {record.case} {record.level.value} {label(record.cell)}"
        ended = text(f"{case} ", styled(record.verdict), f" {duration}")
        return table([(count, ended), *([("", verdict_reason(record))] if is_red(record) else [])])
