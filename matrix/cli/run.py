"""`megatrix run`."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from matrix.authoring import breaking
from matrix.bisection.probing import exit_code
from matrix.catalog import loading
from matrix.catalog.failure import Level
from matrix.cli import case_options, places, results
from matrix.cli.command_options import add_json, add_out
from matrix.cli.usage import add_command
from matrix.errors import ExitStatus, MatrixError
from matrix.execution import images, interrupt, run
from matrix.execution.engine import RERUN_HERE
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


def add_parser(commands: Any) -> None:
    """Add the command to the object that argparse's add_subparsers returned."""
    parser = add_command(commands, "run")
    case_options.add_cases(parser)
    parser.add_argument("--no-cache", action="store_true", help="also run cases whose result is cached")
    parser.add_argument(
        "--resume",
        nargs="?",
        const="",
        metavar="RUN",
        help="finish an interrupted run (default: the newest night)",
    )
    parser.add_argument(
        "--exit-code", action="store_true", help="exit with 0 (good), 1 (bad) or 125 (skip), for git bisect run"
    )
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="bases to run at a time (default: CPU cores)"
    )
    parser.add_argument(
        "-n",
        dest="workers",
        type=int,
        metavar="N",
        help="cases to run at a time on each base, in workers of pytest-xdist (default: 1; at level gpu, one for each "
        "GPU)",
    )
    parser.add_argument(
        "--time-limit",
        type=float,
        metavar="MINUTES",
        help="stop after this time; cases without a result are not reached, and --resume runs them",
    )
    parser.add_argument(
        "--pull", action="store_true", help="first pull the missing images whose cases can run on this machine"
    )
    parser.add_argument(
        "--results",
        type=Path,
        metavar="FOLDER",
        help="write the results of level gpu as a page that can be committed; without a GPU run nothing, exit with 3",
    )
    parser.add_argument(
        "--break",
        dest="break_",
        metavar="ID",
        help="swap the expectations of this failure, to prove that each case can turn red",
    )
    places.add_places(parser)
    add_out(parser)
    add_json(parser, "records")
    parser.set_defaults(command=run_command)


def run_command(parsed: argparse.Namespace) -> int:
    """Run the cases and print the summary; return the exit status of the run (docs/runs.md)."""
    interrupt.once()
    configuration.load()  # a mistake in it is reported once, not by each case
    parsed.resume_hint = "nothing was started"
    for option, count in (("--jobs", parsed.jobs), ("-n", parsed.workers)):
        if count is not None and count < 1:
            raise MatrixError(f"{option} must be at least 1", got=f"{option} {count}", expected=">= 1")
    limit_s = None if parsed.time_limit is None else 60 * parsed.time_limit
    if limit_s is not None and not limit_s > 0:
        raise MatrixError("--time-limit must be above 0", got=f"{parsed.time_limit}", expected="minutes, such as 60")
    if parsed.results and not host.look().offers(Level.GPU).gpus:
        problem = host.look().offers(Level.GPU).problem
        warn(f"nothing was run: CUDA shows no GPU on this machine{f' ({problem})' if problem else ''}")
        if parsed.json:
            print(json_object("records/2", ()))
        return ExitStatus.NOTHING
    if parsed.here:
        os.environ.setdefault(RERUN, RERUN_HERE)  # for the rerun commands of the plan; its pytest sets the same
    known = loading.load()
    if parsed.resume is not None:
        chosen = (parsed.select, parsed.within, parsed.case, parsed.mcore, parsed.level, parsed.expect, parsed.here)
        of_case = (parsed.te, parsed.writer, parsed.compile)
        if any((*chosen, *of_case, parsed.break_)):
            raise MatrixError(
                "a resumed run keeps its plan",
                expected="--resume without options that select cases",
                fix="leave one out",
            )
        stored = run.earlier(parsed.out, parsed.resume or results.newest(parsed.out, night=True))
        planned, attach = stored.planned, parsed.engine == "slurm"
        request = run.Request(planned, parsed.out, not parsed.no_cache, stored, attach, limit_s=limit_s)
    else:
        planned, label = case_options.selected(known, case_options.request_of(parsed))
        label = PART if label == NIGHT and (parsed.within or parsed.level) else label
        planned = results.durations(known, parsed.out).timed(planned)
        request = run.Request(planned, parsed.out, not parsed.no_cache, label=label, limit_s=limit_s)
        if parsed.break_:
            known.failure(parsed.break_)
            planned = breaking.swapped(planned, parsed.break_)
            request = run.Request(planned, parsed.out / BROKEN, cache=False, label="break", limit_s=limit_s)
    here = parsed.engine == "local"
    workers = parsed.workers or (places.workers_for(planned, host.look()) if here else 1)
    engine, place = places.engine_of(known, parsed, parsed.jobs, workers)
    if parsed.pull and not here:
        raise MatrixError("--pull is for this machine", got="--pull with --engine slurm", fix="leave --pull out")
    if parsed.pull and (absent := images.to_pull(known, planned, host.look(), tools.find())):
        images.pull(absent, Builder(warn), warn)
    screen = Screen(len(planned))

    def report(stored: night.StoredRun, history: History) -> night.Night:
        again = "run it again" if parsed.break_ else f"continue with: {resume_line(stored.folder.name, parsed.out)}"
        parsed.resume_hint = again
        return output.render(stored, request.out, history, known)

    # With --json, stdout is one JSON object, and the journal of the run has each record as it ends.
    events = run.Events(warn=warn, ended=report)
    events = events if parsed.json else replace(events, show=screen.show, begun=screen.begin)
    with nullcontext() if parsed.json else screen.animated():
        ended = run.execute(replace(request, site=place), known, engine, events)
    if parsed.json:
        print(json_object("records/2", (record.to_json() for record in ended.records)))
    else:
        results.print_summary(ended, request.out)
    say = warn if parsed.json else print
    if parsed.results:
        say(f"results: {write_results(parsed.results, ended)}")
    if parsed.break_:
        broken, text = breaking.outcome(ended.records)
        say(text)
        return ExitStatus.GOOD if broken else ExitStatus.BAD
    if page := os.environ.get("GITHUB_STEP_SUMMARY"):
        try:
            with Path(page).open("a", encoding="utf-8") as file:
                file.write(Paths(parsed.out).pages(ended.run).summary.read_text("utf-8"))
        except OSError as error:
            raise unwritable(Path(page), error) from error
    return exit_code(ended.records) if parsed.exit_code else run.exit_status(ended)


def write_results(folder: Path, ended: night.Night) -> Path:
    """Write the page of a run at level gpu; return its path."""
    here = host.look()
    gpus = here.offers(Level.GPU).gpus or ()
    path = folder / gpu_results.name(ended, gpus)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(gpu_results.page(ended, gpus, here.driver), encoding="utf-8")
    except OSError as error:
        raise unwritable(path, error) from error
    return path


def resume_line(name: str, out: Path) -> str:
    """Return the command that resumes a run, by the name under which this process was started."""
    command = os.environ.get("MEGATRIX_COMMAND") or ("megatrix" if shutil.which("megatrix") else "python3 -m matrix")
    given = [] if out == OUT else ["--out", str(out)]
    return f"{command} {shlex.join(['run', '--resume', name, *given])}"
