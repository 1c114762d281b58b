"""`megatrix bisect`."""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

from matrix.bisection import axes
from matrix.bisection.axes import AxisName
from matrix.bisection.clone import Clone
from matrix.bisection.ends import confirmed, ended, keep_judged, learn, measured, ran, twice
from matrix.bisection.joint import BisectionAnswer
from matrix.bisection.noise import CERTAIN, Noise, ProbeResult
from matrix.bisection.own import OwnCommand, signature_text, signatures_in, site
from matrix.bisection.probing import CellProbes, ContractProbes, metric_of, reads_only
from matrix.bisection.question import SIDE, BisectionQuestion, Stretch
from matrix.bisection.search import Plan
from matrix.bisection.session import BisectionSession, ProbeReport, ProbeStore, store_name
from matrix.bisection.summary import summarize
from matrix.bisection.suspects import Suspects, none, of_call, of_signatures
from matrix.catalog import loading
from matrix.catalog.failure import Failure, Level
from matrix.catalog.versions import NONE
from matrix.cli import out, places
from matrix.cli.usage import add_command
from matrix.errors import ExitStatus, MatrixError
from matrix.execution import interrupt
from matrix.execution.engine import Engine
from matrix.provision.extension import toolkit
from matrix.provision.host import ExecutionSite
from matrix.report.bisection import bisection_page, issue_text, render
from matrix.report.json_object import json_object
from matrix.report.known import statement
from matrix.report.terminal import Prose, show, warn
from matrix.store.paths import Paths, write_whole
from matrix.verdicts.text import visible

# Extra points that are probed at the end, outside the searched range; reading one takes under a second.
CHECKS_READ: Final = 6
CHECKS_MEASURED: Final = 2  # the same for a measured number: each costs several runs


def add_parser(commands: Any) -> None:
    """Add the command to the object that argparse's add_subparsers returned."""
    parser = add_command(commands, "bisect")
    parser.add_argument(
        "failure", metavar="FAILURE", nargs="?", default="", help="id of a failure in the catalog; or -- COMMAND ..."
    )
    parser.add_argument(
        "--axis",
        choices=[one.value for one in AxisName],
        help="the package or image that changes; without it, two stacks are compared",
    )
    parser.add_argument("--good", default="", metavar="X", help="a point that passes; without --axis, a stack")
    parser.add_argument(
        "--bad", default="", metavar="X", help="a point that fails, or a stack (default: both ends of the axis)"
    )
    parser.add_argument("--repo", metavar="CLONE", help="bisect the commits of this clone (axis mcore, te or writer)")
    parser.add_argument(
        "--case", default="", metavar="NAME", help="a case of the failure, such as pp2 (default: the first)"
    )
    parser.add_argument(
        "--level",
        choices=[one.value for one in Level],
        help="level to probe at (default: the least demanding one of the case)",
    )
    parser.add_argument("--base", default="", metavar="BASE", help="base of every point")
    parser.add_argument("--torch", default="", metavar="V", help="use the base with this torch")
    parser.add_argument("--mcore", default="", metavar="V", help=f"megatron-core of every point: {SIDE}")
    parser.add_argument("--te", default="", metavar="V", help=f"Transformer Engine of every point: {SIDE}")
    parser.add_argument("--writer", default="", metavar="V", help=f"megatron-core that writes the checkpoint: {SIDE}")
    parser.add_argument("--driver", default=NONE, metavar="V", help="driver of every point")
    parser.add_argument(
        "--compile", action="store_true", help="build Transformer Engine's commits with their extension; needs nvcc"
    )
    parser.add_argument("--at-once", type=int, default=1, metavar="K", help="points to probe at a time (default: 1)")
    parser.add_argument(
        "--shows",
        type=float,
        default=1.0,
        metavar="P",
        help="probability that one run shows the failure, for flaky failures (default: 1)",
    )
    parser.add_argument(
        "--confidence",
        type=float,
        default=0.95,
        metavar="C",
        help="report no answer below this confidence (default: 0.95)",
    )
    parser.add_argument(
        "--checks",
        type=int,
        metavar="N",
        help=f"extra points to check at the end (default: {CHECKS_READ} at level contract, else 0)",
    )
    own = parser.add_argument_group(
        "a command of your own", "-- COMMAND ... runs in each cell; it passes at --good X and fails at --bad Y"
    )
    own.add_argument(
        "--signature", default="", metavar="FILE", help="what is bad: [[signature]] tables (default: learned from Y)"
    )
    own.add_argument("--metric", default="", metavar="REGEX", help="what is bad: a number that the command prints")
    own.add_argument(
        "--worse-than", type=share, default=0.0, metavar="5%%", help="the difference of the number that matters"
    )
    own.add_argument("--repeats", type=int, default=1, metavar="N", help="runs of the command per probe, with --metric")
    own.add_argument("--deadline", type=int, default=0, metavar="S", help="seconds for one run (default: 120)")
    parser.add_argument("--no-cache", action="store_true", help="probe again, ignoring stored results")
    places.add_places(parser)
    out.add_out(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object (docs/schema/bisect.json)")
    parser.set_defaults(command=bisect_command, resume_hint="continue with the same command line")


def share(text: str) -> float:
    """Return the value of "5%" or "0.05". Raises ValueError, which argparse reports."""
    value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    if not 0 < value < 10:
        raise ValueError(text)
    return value


def bisect_command(parsed: argparse.Namespace) -> int:
    """Print the answer; return 0 when it is unique, 1 when it is ambiguous."""
    interrupt.once()
    with ExitStack() as stack:
        if parsed.own:
            return bisect_own(own_of(parsed), parsed, stack)
        if not parsed.failure:
            raise MatrixError("nothing to bisect", expected="the id of a failure, or a command: -- COMMAND ...")
        if parsed.signature or parsed.metric or parsed.deadline:
            raise MatrixError("--signature, --metric and --deadline are for a command", expected="-- COMMAND ...")
        made = opened(parsed, stack)
        return print_found(made.found(), made.session, parsed)


@dataclass(frozen=True)
class Opened:
    """A bisection that is ready to probe."""

    points: Stretch
    plan: Plan
    session: BisectionSession
    engine: tuple[Engine, ExecutionSite | None]

    @property
    def failure(self) -> Failure:
        """Return the failure whose case every point runs."""
        return self.points.subject.failure

    def found(self) -> BisectionAnswer:
        """Search between the ends. Raises MatrixError."""
        return self.points.search(self.plan, self.session)


def opened(parsed: argparse.Namespace, stack: ExitStack, before: Opened | None = None) -> Opened:
    """Load the catalog and open the probe store and the clone. Raises MatrixError.

    With `before` it has the same engine, which does not check again the environments that it found.
    """
    known = loading.load()
    given: dict[str, Any] = {one.name: getattr(parsed, one.name) or "" for one in fields(BisectionQuestion)}
    question = BisectionQuestion(**given)
    subject = question.subject(known)
    reads = reads_only(subject.failure, subject.level)
    checks = parsed.checks if parsed.checks is not None else CHECKS_READ if reads else 0
    store = ProbeStore(Paths(parsed.out).bisections / store_name(subject), fresh=parsed.no_cache)
    stack.callback(store.close)
    package = axes.PACKAGES[AxisName(parsed.axis)].value if parsed.repo else ""
    clone = Clone(parsed.repo, package, compiled=parsed.compile) if parsed.repo else None
    reader = ContractProbes(known, [stack.enter_context(clone)] if clone else [])
    # Side by side, unless the command is timed. The ranks of a failure preload torch in every worker.
    workers = parsed.at_once if parsed.own and not parsed.metric and parsed.engine == "local" else 1
    engine, place = before.engine if before else places.engine_of(known, parsed, parsed.at_once, workers)
    if parsed.compile and subject.base and (held := engine.installed(subject.base)):
        toolkit(held.environment.features, subject.base, held.image)
    cells = CellProbes(known, engine, parsed.out, warn, place, cache=not parsed.no_cache)
    call = subject.failure.contract if reads else None
    suspects: Suspects = none
    if clone:
        suspects = of_call(call, clone) if call else of_signatures(subject.failure.signature, clone)
    points = question.points(subject, engine.lacks, clone, suspects)
    plan = Plan(parsed.at_once, Noise(parsed.shows), parsed.confidence, checks)
    return Opened(points, plan, BisectionSession(reader if reads else cells, store, progress), (engine, place))


def own_of(parsed: argparse.Namespace) -> OwnCommand:
    """Return the command after --. Raises MatrixError for options that it does not take."""
    if parsed.failure or parsed.case or parsed.level == Level.CONTRACT.value:
        raise MatrixError(
            "a command is bisected instead of a failure",
            got=parsed.failure or (parsed.case and f"--case {parsed.case}") or "--level contract",
            expected="no failure, no --case, --level cpu or gpu",
        )  # fmt: skip
    if not (parsed.good and parsed.bad):
        raise MatrixError("a command needs both ends", expected="--good X --bad Y: it passes at X and fails at Y")
    if bool(parsed.metric) != bool(parsed.worse_than) or (parsed.metric and parsed.signature):
        raise MatrixError(
            "a number is compared, or a signature", expected="--metric REGEX --worse-than 5%, or --signature FILE"
        )
    held = ("bad", "axis", "base", "torch", "mcore", "te", "driver", "compile")
    ends = tuple(f"{name}={getattr(parsed, name)}" for name in held)
    level = Level(parsed.level or Level.CPU.value)
    command = tuple(parsed.own)
    return OwnCommand(command, Path.cwd(), level, parsed.deadline, parsed.metric, parsed.repeats, ends)


def bisect_own(own: OwnCommand, parsed: argparse.Namespace, stack: ExitStack) -> int:
    """Learn what is bad from both ends, search between them, print the result and write the draft of a failure."""
    folder = Paths(parsed.out).bisections.absolute() / own.id
    root, parsed.failure = folder / "failures", own.id
    signatures = signatures_in(Path(parsed.signature)) if parsed.signature else own.signatures(root)
    entry = own.write(root, signatures)
    stack.enter_context(site(root, own.deadline))
    made = opened(parsed, stack)
    good, bad = made.points.ends
    if own.metric:
        session = replace(made.session, read=metric_of)
        noise = measured(session, made.failure, good, bad, parsed.worse_than, parsed.confidence)
        say(f"good: {noise.good}; bad: {noise.bad}")
        checks = CHECKS_MEASURED if parsed.checks is None else parsed.checks
        found = replace(made, session=session, plan=replace(made.plan, noise=noise, checks=checks)).found()
        if not found.comparison:
            confirmations = {axis: confirmed(one, noise, session) for axis, one in found.bisections.items()}
            found = replace(found, bisections=confirmations)
        return print_found(found, session, parsed, own, folder)
    if not signatures:
        first = replace(made.session, read=ended)
        records = ran(first, made.failure, good, bad, Noise(parsed.shows).tries(parsed.confidence))
        signatures = (learn(records[-1], bad, made.failure),)
        own.write(root, signatures)
        made = opened(parsed, stack, made)
        made.session.ran, made.session.seconds = first.ran, first.seconds
        keep_judged(made.session.store, made.failure, records)
    say(f"bad is this signature; edit {entry}, or give --signature FILE, to change it:")
    say("".join(map(signature_text, signatures)).strip())
    found = made.found()
    if made.plan.noise == CERTAIN:
        found = twice(found, made.session)
    return print_found(found, made.session, parsed, own, folder)


def say(text: str) -> None:
    """Print a line to standard error."""
    print(visible(text), file=sys.stderr, flush=True)


def progress(probe: ProbeReport) -> None:
    """Print the result of a probe to standard error."""
    source = "known" if probe.known else f"{probe.seconds:.1f} s"
    seen = probe.seen.value if isinstance(probe.seen, ProbeResult) else "ran"
    say(f"{seen:4}  {probe.label}  [{source}]  {probe.why}")


def print_found(
    found: BisectionAnswer,
    session: BisectionSession,
    parsed: argparse.Namespace,
    own: OwnCommand | None = None,
    folder: Path = Path(),
) -> int:
    """Print a result, write its page and the text of an issue; return 0 when it is unique, 1 otherwise."""
    summary = summarize(found, session)
    draft = own.draft(folder, found, summary.headlines) if own else Path()
    issue = issue_text(summary, own.line if own else "")
    if summary.attribution:
        path = page_path(parsed.out, f"{summary.failure}-{summary.case}-{parsed.good}-{parsed.bad}")
    else:
        (change,) = summary.changes.values()
        sides = "-".join(f"{axis}-{value}" for axis, value in change.fixed.items())
        path = page_path(parsed.out, f"{summary.failure}-{summary.case}-by-{change.axis.value}-{sides[-80:]}")
    write_whole(path, bisection_page(summary, issue))
    write_whole(path.with_suffix(".md"), issue + (own.attached if own else ""))
    more = {"draft": str(draft), "issue": str(path.with_suffix(".md"))} if own else {}
    if parsed.json:
        print(json_object("bisect/1", [{**summary.to_json(), **more}]))
    else:
        known = () if own or summary.attribution else statement(found.subject.failure)
        shown = [*render(summary, str(path)), *(Prose(line, 2) for line in known)]
        show(*shown, *(f"  {name}: {value}" for name, value in more.items()))
    return ExitStatus.BAD if summary.ambiguous else ExitStatus.GOOD


def page_path(out: Path, name: str) -> Path:
    """Return the path of a page."""
    safe = "".join(letter if letter.isalnum() or letter in ".-+" else "_" for letter in name)
    return Paths(out).bisections / f"{safe}.html"
