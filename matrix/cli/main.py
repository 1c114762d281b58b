"""The command line: `megatrix` and `python -m matrix`."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from matrix import __version__
from matrix.bisection.noise import Seen
from matrix.bisection.probing import GIT, exit_code
from matrix.bisection.probing import LABEL as BISECTS
from matrix.catalog import loading
from matrix.catalog.failure import Expectation
from matrix.catalog.model import Catalog
from matrix.catalog.versions import NONE
from matrix.check import compat
from matrix.cli import advise as advice
from matrix.cli import bisect as bisection
from matrix.cli import choice, contract, doctor
from matrix.errors import MatrixError
from matrix.execution import interrupt, run
from matrix.execution.engine import Engine, Engines, Tox
from matrix.execution.images import Images
from matrix.execution.slurm import commands as slurm
from matrix.execution.slurm.engine import Slurm
from matrix.planning import ci_jobs as services
from matrix.planning import covering, explain, statistics
from matrix.planning import night as plan
from matrix.provision import building, host
from matrix.provision.images import Builder
from matrix.report import markdown, output, reading
from matrix.report.changes import changes
from matrix.report.screen import Screen
from matrix.report.summary import colour_wanted, summary
from matrix.store import night
from matrix.store.history import History
from matrix.store.paths import OUT, Paths
from matrix.verdicts.lines import numbered
from matrix.verdicts.match import match
from matrix.verdicts.record import Record

FORMATS = ("markdown", "issue", "webhook")
INTERRUPTED = 130  # exit status after Ctrl-C, as a shell has it


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return its exit status: 0 green, 1 red or not reached, 2 a mistake in the input."""
    parsed = parser().parse_args(arguments)
    try:
        status: int = parsed.command(parsed)
    except MatrixError as error:
        print(f"megatrix: {error}", file=sys.stderr)
        return GIT[Seen.SKIP] if getattr(parsed, "exit_code", False) else 2  # git takes 2 for "bad"
    except KeyboardInterrupt:
        goes_on = getattr(parsed, "goes_on", "`megatrix run --resume` goes on from here")
        print(f"megatrix: interrupted; {goes_on}", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader (head, less) has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return GIT[Seen.SKIP] if getattr(parsed, "exit_code", False) else 0
    return status


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    about = "Known Megatron-LM x Transformer Engine x PyTorch x driver failures, run for real."
    top = argparse.ArgumentParser(prog="megatrix", description=about)
    top.add_argument("--version", action="version", version=f"megatrix {__version__}")
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, function: object, text: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text)
        made.set_defaults(command=function)
        return made

    planning = command("plan", plan_command, "Show the night, or what a selection would run, and why each case is in.")
    choice.add_cases(planning)
    planning.add_argument("--stats", action="store_true", help="count instead: the whole space, the night, and why")
    planning.add_argument("--format", choices=services.FORMATS, help="print it as jobs of a CI service instead")
    running = command("run", run_command, "Run the night, or a selection, and report.")
    choice.add_cases(running)
    running.add_argument("--no-cache", action="store_true", help="run also what ran before with the same content")
    running.add_argument("--resume", nargs="?", const="", metavar="RUN", help="finish an interrupted run (the newest)")
    running.add_argument("--exit-code", action="store_true", help="exit with 0, 1 or 125, as git bisect run wants it")
    running.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="bases at a time")
    choice.add_places(running)
    explaining = command(
        "explain", explain_command, "Say what is known of a cell, and why it is or is not in the night."
    )
    explaining.add_argument("cell", metavar="CELL", help="torch-2.4.0/mcore-0.8.0/te-none/driver-none")
    making = command("build", build_command, "Build an image, or lay releases over one (docs/images.md).")
    making.add_argument("image", metavar="IMAGE", help="debian-13; with --mcore or --te a registry's, too: ngc-24.07")
    making.add_argument("--mcore", default="", metavar="VERSION", help="lay this release of megatron-core over it")
    making.add_argument("--te", default="", metavar="VERSION", help="lay this release of Transformer Engine over it")
    making.add_argument("--mirror", default="", metavar="URL", help="where Debian's packages come from")
    matching = command("compat", compat_command, "Say what is known to break in a stack, and the way round it.")
    matching.add_argument("stack", metavar="STACK", nargs="+", help=compat.FORM)
    matching.add_argument("--out", type=Path, default=default_out(), help="output folder, for its history")
    showing = command("match", match_command, "Say which known failures a log shows, and the way round them.")
    showing.add_argument("log", metavar="LOG", help="a file of any size and encoding; - is standard input")
    showing.add_argument("--json", action="store_true", help="one list of objects, empty when nothing is known")
    contract.add_parsers(commands)
    choice.add_places(bisection.add_parser(commands, engine_of))
    advice.add_parser(commands)
    doctor.add_parser(commands)
    reporting = command("report", report_command, "Make the pages of a run again and print its summary.")
    reporting.add_argument("run", nargs="?", default="", metavar="RUN", help="a run's id (the newest)")
    reporting.add_argument(
        "--format", choices=FORMATS, help="print this in place of the summary; an issue may be empty"
    )
    for one in (running, reporting):
        one.add_argument("--out", type=Path, default=default_out(), help="output folder")
    for one in (planning, running, reporting, explaining, matching):
        one.add_argument("--json", action="store_true", help="one JSON object per line")
    return top


def plan_command(parsed: argparse.Namespace) -> int:
    """`megatrix plan`."""
    known = loading.load()
    planned, label = choice.chosen(known, parsed)
    if parsed.stats:
        if label != "night":
            raise MatrixError("--stats speaks of the night", got=f"--stats with --{label}", fix="leave one out")
        if parsed.format:
            raise MatrixError("a plan is counted or printed as jobs", got="--stats --format", fix="leave one out")
        counted = statistics.statistics(known, planned, choice.levels_of(parsed))
        if parsed.json:
            for one in counted:
                print(json.dumps(vars(one)))
        else:
            print(statistics.in_words(counted))
        return 0
    if parsed.format:
        if label != "night":
            raise MatrixError("--format speaks of the night", got=f"--format with --{label}", fix="use --within")
        print(json.dumps(services.FORMATS[parsed.format](services.jobs(planned, choice.levels_of(parsed)))))
        return 0
    for item in planned:
        if parsed.json:
            print(json.dumps(item.to_json()))
        else:
            print(f"{item.key}  [{item.expectation.value}]")
            for why in item.why:
                print(f"    {why}")
    if not parsed.json:
        print(f"{len(planned)} cases in {len({item.cell.id for item in planned})} cells")
    return 0


def run_command(parsed: argparse.Namespace) -> int:
    """`megatrix run`."""
    interrupt.once()
    if parsed.jobs < 1:
        raise MatrixError("a run needs at least one base at a time", got=f"--jobs {parsed.jobs}", expected=">= 1")
    known = loading.load()
    engine, place = engine_of(known, parsed, parsed.jobs)
    if parsed.resume is not None:
        if parsed.select or parsed.within or parsed.case or parsed.mcore or parsed.level or parsed.expect:
            raise MatrixError(
                "a resumed run has its plan", expected="--resume without a choice of cases", fix="leave one out"
            )
        request = run.Request(
            out=parsed.out,
            cache=not parsed.no_cache,
            resume=parsed.resume or newest(parsed.out),
            attach=place is not None,
        )
        total = len(night.plan(Paths(parsed.out).run(request.resume)))
    else:
        planned, label = choice.chosen(known, parsed)
        request = run.Request(planned, parsed.out, not parsed.no_cache, label=label)
        total = len(planned)
    screen = Screen(total, os.environ)

    def as_json(record: Record) -> None:
        print(run.as_line(record), flush=True)

    show, begun = (as_json, lambda key: None) if parsed.json else (screen.show, screen.begin)

    def report(folder: Path, history: History) -> night.Night:
        return output.render(folder, parsed.out, history, known)

    told = run.execute(request, known, engine, show, screen.warn, place, begun, report)
    if not parsed.json:
        tell(told.records, parsed.out, screen.width)
    if page := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(page).open("a", encoding="utf-8") as file:
            file.write(Paths(parsed.out).summary.read_text("utf-8"))
    return exit_code(told.records) if parsed.exit_code else run.exit_status(told.records)


def engine_of(known: Catalog, parsed: argparse.Namespace, jobs: int) -> tuple[Engine, host.Place | None]:
    """Return the engine that the options choose, and the place that it runs on where that is not this machine."""
    if parsed.engine == "slurm":
        commands = slurm.of(parsed.partition, parsed.sbatch)
        cluster = Slurm(known, host.look(), Tox(jobs, only_make=True), commands)
        return cluster, cluster
    if parsed.partition or parsed.sbatch:
        raise MatrixError("--partition and --sbatch speak to Slurm", expected="--engine slurm with them")
    return engines(known, jobs), None


def engines(known: Catalog, jobs: int) -> Engines:
    """Return what runs the bases: containers for images, `jobs` tox environments at a time for the others."""
    ids = {*(image.id for image in known.images), *(container.id for container in known.containers)}
    return Engines(ids, Images(known), Tox(jobs))


def build_command(parsed: argparse.Namespace) -> int:
    """`megatrix build`."""
    wish = building.wished(loading.load(), parsed.image, parsed.mcore, parsed.te, parsed.mirror)
    digest = building.build(wish, Builder(lambda text: print(text, flush=True)), parsed.mirror)
    print(f"{wish.tag} {digest}")
    return 0


def explain_command(parsed: argparse.Namespace) -> int:
    """`megatrix explain`."""
    known = loading.load()
    here, runs = host.look(), engines(known, 1)
    told = explain.explain(
        known,
        parsed.cell,
        plan.night(known, covering.pairwise),
        lambda item: here.can_run(item)[1] or runs.lacks(item.cell.base),
    )
    print(json.dumps(told.to_json()) if parsed.json else explain.in_words(told))
    return 0


def compat_command(parsed: argparse.Namespace) -> int:
    """`megatrix compat`: 1 when something is known to break."""
    known = loading.load()
    stack = compat.parse_stack(known, " ".join(parsed.stack))
    path = Paths(parsed.out).history
    levels = {}
    if path.is_file():
        with History(path) as history:
            levels = dict(history.levels())
    told = compat.compat(known, stack, levels)
    found, why = [], ""
    if NONE not in (stack.mcore, stack.te):
        try:
            found = compat.unlisted(known, stack)
        except MatrixError as error:
            why = f"level contract says nothing: {error.brief}"
    if parsed.json:
        for one in [*(one.to_json() for one in told), *(finding.to_json() for finding in found)]:
            print(json.dumps(one))
    else:
        print(compat.in_words(told))
        if NONE not in (stack.mcore, stack.te):
            print(f"\n{why or compat.findings_in_words(found, stack)}".rstrip())
    return 1 if any(one.expectation is Expectation.BROKEN for one in told) else 0


def match_command(parsed: argparse.Namespace) -> int:
    """`megatrix match`: 1 when the log shows nothing that is known."""
    try:
        with sys.stdin.buffer if parsed.log == "-" else Path(parsed.log).open("rb") as file:
            told = match(numbered(file), loading.load().failures)
    except OSError as error:
        raise MatrixError(
            "the log can't be read", where=parsed.log, got=error.strerror, fix="name a file, or -"
        ) from error
    print(json.dumps([one.to_json() for one in told.known]) if parsed.json else reading.in_words(told))
    return 0 if told.known else 1


def default_out() -> Path:
    """Return the output folder: $MEGATRIX_OUT or reports/out."""
    return Path(os.environ.get("MEGATRIX_OUT", OUT))


def report_command(parsed: argparse.Namespace) -> int:
    """`megatrix report`."""
    paths = Paths(parsed.out)
    with History(paths.history) as history:
        told = output.render(paths.run(parsed.run or newest(parsed.out)), parsed.out, history, loading.load())
        different = changes(told.records, history.previous(told.run))
    if parsed.format == "markdown":
        print(markdown.job_summary(told, different), end="")
    elif parsed.format == "issue":
        print(markdown.issue(told, different), end="")
    elif parsed.format == "webhook":
        print(json.dumps(markdown.webhook(told, different)))
    elif parsed.json:
        for record in told.records:
            print(run.as_line(record))
    else:
        tell(told.records, parsed.out, shutil.get_terminal_size().columns)
    return run.exit_status(told.records)


def tell(records: Sequence[Record], out: Path, width: int) -> None:
    """Print the summary and where the pages are."""
    print()
    print(summary(records, width=width, colour=colour_wanted(sys.stdout, os.environ)), end="")
    print(f"page: {Paths(out).page}  junit: {Paths(out).junit}")


def newest(out: Path) -> str:
    """Return the id of the newest run that is no round of a bisection. Raises MatrixError when there is none."""
    runs = sorted(
        path.name for path in Paths(out).run("").glob("*") if path.is_dir() and not path.name.endswith(f"-{BISECTS}")
    )
    if not runs:
        raise MatrixError("there is no run yet", where=str(out), fix="megatrix run makes one")
    return runs[-1]
