"""`megatrix run`."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from matrix.authoring import breaking
from matrix.bisection.probing import exit_code
from matrix.catalog import loading
from matrix.catalog.failure import Level
from matrix.catalog.model import Catalog
from matrix.cli import case_options, places, results
from matrix.cli.command_options import add_json, add_out
from matrix.cli.usage import add_command
from matrix.errors import ExitStatus, MatrixError
from matrix.execution import images, interrupt, run
from matrix.execution.engine import RERUN_HERE, Engine
from matrix.planning.rerun import RERUN
from matrix.provision import configuration, host, tools
from matrix.provision.images import Builder
from matrix.report import gpu_results, output
from matrix.report.json_object import json_object
from matrix.report.screen import Screen
from matrix.report.terminal import warn
from matrix.store import night
from matrix.store.history import History
from matrix.store.paths import NIGHT, OUT, Paths, unwritable

# A folder in the output folder: a run that is red by design stays out of the history of nights.
BROKEN = "broken-on-purpose"
PART = "part"  # the label of a run of a part of the night


OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "--no-cache": {"action": "store_true", "help": "also run cases whose result is cached"},
    "--resume": {
        "nargs": "?",
        "const": "",
        "metavar": "RUN",
        "help": "finish an interrupted run (default: the newest night)",
    },
    "--exit-code": {
        "action": "store_true",
        "help": "exit with 0 (good), 1 (bad) or 125 (skip), for git bisect run",
    },
    "--jobs": {
        "type": int,
        "default": os.cpu_count() or 1,
        "metavar": "N",
        "help": "bases to run at a time (default: CPU cores)",
    },
    "-n": {
        "dest": "workers",
        "type": int,
        "metavar": "N",
        "help": "cases to run at a time on each base, in workers of pytest-xdist (default: 1; at level gpu, one for "
        "each GPU)",
    },
    "--time-limit": {
        "type": float,
        "metavar": "MINUTES",
        "help": "stop after this time; cases without a result are not reached, and --resume runs them",
    },
    "--pull": {"action": "store_true", "help": "first pull the missing images whose cases can run on this machine"},
    "--results": {
        "type": Path,
        "metavar": "FOLDER",
        "help": "write the results of level gpu as a page that can be committed; without a GPU run nothing, exit with "
        "3",
    },
    "--break": {
        "dest": "break_",
        "metavar": "ID",
        "help": "swap the expectations of this failure, to prove that each case can turn red",
    },
}


def add_parser(commands: Any) -> None:
    """Add the command to the object that argparse's add_subparsers returned."""
    parser = add_command(commands, "run")
    case_options.add_cases(parser)
    for name, option in OPTIONS.items():
        parser.add_argument(name, **option)
    places.add_places(parser)
    add_out(parser)
    add_json(parser, "records")
    parser.set_defaults(command=run_command)


def run_command(parsed: argparse.Namespace) -> int:
    """Run the cases and print the summary; return the exit status of the run (docs/runs.md)."""
    interrupt.once()
    configuration.load()  # a mistake in it is reported once, not by each case
    parsed.resume_hint = "nothing was started"
    limit_s = checked_limit(parsed)
    if parsed.results and not (gpus := host.look().offers(Level.GPU)).gpus:
        warn(f"nothing was run: CUDA shows no GPU on this machine{f' ({gpus.problem})' if gpus.problem else ''}")
        if parsed.json:
            print(json_object("records/2", ()))
        return ExitStatus.NOTHING
    if parsed.here:
        os.environ.setdefault(RERUN, RERUN_HERE)  # for the rerun commands of the plan; its pytest sets the same
    catalog = loading.load()
    request = resumed(parsed) if parsed.resume is not None else requested(catalog, parsed)
    on_slurm = parsed.engine == "slurm"
    workers = parsed.workers or (1 if on_slurm else places.workers_for(request.planned, host.look()))
    engine, site = places.engine_of(catalog, parsed, parsed.jobs, workers)
    if parsed.pull and on_slurm:
        raise MatrixError("--pull is for this machine", got="--pull with --engine slurm", fix="leave --pull out")
    if parsed.pull and (absent := images.to_pull(catalog, request.planned, host.look(), tools.find())):
        images.pull(absent, Builder(warn), warn)
    finished = executed(replace(request, site=site, limit_s=limit_s), catalog, engine, parsed)
    if parsed.json:
        print(json_object("records/2", (record.to_json() for record in finished.records)))
    else:
        results.print_summary(finished, request.out)
    say = warn if parsed.json else print
    if parsed.results:
        say(f"results: {write_results(parsed.results, finished)}")
    if parsed.break_:
        broken, text = breaking.outcome(finished.records)
        say(text)
        return ExitStatus.GOOD if broken else ExitStatus.BAD
    add_step_summary(Paths(parsed.out).pages(finished.run).summary)
    return exit_code(finished.records) if parsed.exit_code else run.exit_status(finished)


def checked_limit(parsed: argparse.Namespace) -> float | None:
    """Return the seconds of --time-limit. Raises MatrixError for a number that an option does not take."""
    for option, count in (("--jobs", parsed.jobs), ("-n", parsed.workers)):
        if count is not None and count < 1:
            raise MatrixError(f"{option} must be at least 1", got=f"{option} {count}", expected=">= 1")
    if parsed.time_limit is None:
        return None
    if not parsed.time_limit > 0:
        raise MatrixError("--time-limit must be above 0", got=f"{parsed.time_limit}", expected="minutes, such as 60")
    return 60 * float(parsed.time_limit)


def resumed(parsed: argparse.Namespace) -> run.Request:
    """Return the request to finish an earlier run. Raises MatrixError with an option that selects cases."""
    selecting = ("select", "within", "case", "mcore", "level", "expect", "here", "te", "writer", "compile", "break_")
    if any(getattr(parsed, name) for name in selecting):
        raise MatrixError(
            "a resumed run keeps its plan",
            expected="--resume without options that select cases",
            fix="leave one out",
        )
    stored = run.earlier(parsed.out, parsed.resume or results.newest(parsed.out, night=True))
    return run.Request(stored.planned, parsed.out, not parsed.no_cache, stored, parsed.engine == "slurm")


def requested(catalog: Catalog, parsed: argparse.Namespace) -> run.Request:
    """Return the request for a new run of the selected cases; --break has its own folder. Raises MatrixError."""
    planned, label = case_options.selected(catalog, case_options.request_of(parsed))
    label = PART if label == NIGHT and (parsed.within or parsed.level) else label
    planned = results.durations(catalog, parsed.out).timed(planned)
    if not parsed.break_:
        return run.Request(planned, parsed.out, not parsed.no_cache, label=label)
    catalog.failure(parsed.break_)
    return run.Request(breaking.swapped(planned, parsed.break_), parsed.out / BROKEN, cache=False, label="break")


def executed(request: run.Request, catalog: Catalog, engine: Engine, parsed: argparse.Namespace) -> night.Night:
    """Run a request with its progress on the screen, and return the night."""
    screen = Screen(len(request.planned))

    def report(stored: night.StoredRun, history: History) -> night.Night:
        again = "run it again" if parsed.break_ else f"continue with: {resume_line(stored.folder.name, parsed.out)}"
        parsed.resume_hint = again
        return output.render(stored, request.out, history, catalog)

    if parsed.json:  # stdout is one JSON object, and the journal of the run has each record as it ends
        return run.execute(request, catalog, engine, run.Events(warn=warn, ended=report))
    with screen.animated():
        return run.execute(request, catalog, engine, run.Events(screen.show, screen.begin, warn, report))


def add_step_summary(summary: Path) -> None:
    """Add the summary of a run to the page of a step of GitHub Actions, if this process is one."""
    if page := os.environ.get("GITHUB_STEP_SUMMARY"):
        try:
            with Path(page).open("a", encoding="utf-8") as file:
                file.write(summary.read_text("utf-8"))
        except OSError as error:
            raise unwritable(Path(page), error) from error


def write_results(folder: Path, finished: night.Night) -> Path:
    """Write the page of a run at level gpu; return its path."""
    machine = host.look()
    gpus = machine.offers(Level.GPU).gpus or ()
    path = folder / gpu_results.name(finished, gpus)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(gpu_results.page(finished, gpus, machine.driver), encoding="utf-8")
    except OSError as error:
        raise unwritable(path, error) from error
    return path


def resume_line(name: str, out: Path) -> str:
    """Return the command that resumes a run, by the name under which this process was started."""
    command = os.environ.get("MEGATRIX_COMMAND") or ("megatrix" if shutil.which("megatrix") else "python3 -m matrix")
    arguments = [] if out == OUT else ["--out", str(out)]
    return f"{command} {shlex.join(['run', '--resume', name, *arguments])}"
