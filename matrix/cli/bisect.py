"""`megatrix bisect`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from matrix.bisection import axes, joint, report
from matrix.bisection.axes import AxisName, BisectionAxis, Subject
from matrix.bisection.clone import Clone
from matrix.bisection.commits import Searcher, none_built
from matrix.bisection.joint import BisectionStack, Joint, differing, jointly, mixture, shown, stack_of
from matrix.bisection.noise import CERTAIN, Noise, ProbeResult
from matrix.bisection.own import (
    End,
    OwnCommand,
    confirmed,
    ended,
    keep_judged,
    learn,
    measured,
    ran,
    signature_text,
    signatures_in,
    site,
    twice,
)
from matrix.bisection.probing import Ask, CellProbes, ContractProbes, metric_of, reads_only
from matrix.bisection.report import BisectionSummary
from matrix.bisection.search import Plan, ResultKind
from matrix.bisection.session import Bisection, BisectionSession, ProbeReport, ProbeStore, bisect, store_name
from matrix.catalog import loading
from matrix.catalog.failure import Level, Package
from matrix.catalog.model import Catalog, Container
from matrix.catalog.versions import NONE
from matrix.cli import out, places
from matrix.cli.usage import add_command
from matrix.errors import ExitStatus, MatrixError
from matrix.execution import interrupt
from matrix.execution.engine import environment_folder
from matrix.planning.planned import Planned
from matrix.report.bisection import render, render_joint
from matrix.report.bisection_page import bisection_page, joint_page
from matrix.report.json_object import json_object
from matrix.report.known import statement
from matrix.report.terminal import Prose, show, warn
from matrix.store.paths import Paths, write_whole
from matrix.verdicts.text import visible

# Extra points that are probed at the end, outside the searched range; reading one takes under a second.
CHECKS_READ: Final = 6
CHECKS_MEASURED: Final = 2  # the same for a measured number: each costs several runs
NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
SIDE: Final = "a version, PATH@REV of a clone, a folder or a wheel"


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
    parser.add_argument("--repo", metavar="CLONE", help="bisect the commits of this clone (axis mcore or te)")
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
    parser.add_argument(
        "--writer", default=NONE, metavar="V", help="release of megatron-core that writes the checkpoint of every point"
    )
    parser.add_argument("--driver", default=NONE, metavar="V", help="driver of every point")
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
        return print_found(searched(opened(parsed, stack), parsed), parsed)


@dataclass(frozen=True)
class Opened:
    """A bisection that is ready to probe: what it holds fixed, its session, and the clone of its commits, if any."""

    subject: Subject
    plan: Plan
    session: BisectionSession
    clones: tuple[Clone, ...]
    reader: ContractProbes


def opened(parsed: argparse.Namespace, stack: ExitStack) -> Opened:
    """Load the catalog and open the probe store and the clone. Raises MatrixError."""
    known = loading.load()
    subject = subject_of(known, parsed)
    reads = reads_only(subject.failure, subject.level)
    checks = parsed.checks if parsed.checks is not None else CHECKS_READ if reads else 0
    store = ProbeStore(Paths(parsed.out).bisections / store_name(subject), fresh=parsed.no_cache)
    stack.callback(store.close)
    clones: tuple[Clone, ...] = ()
    if parsed.repo:
        clones = (stack.enter_context(Clone(parsed.repo, axes.PACKAGES[AxisName(parsed.axis)].value)),)
    reader = ContractProbes(known, clones)
    ask: Ask = reader if reads else cells(known, parsed)
    plan = Plan(parsed.at_once, Noise(parsed.shows), parsed.confidence, checks)
    return Opened(subject, plan, BisectionSession(ask, store, progress), clones, reader)


def searched(made: Opened, parsed: argparse.Namespace) -> Bisection | Joint:
    """Search between the ends that the options name. Raises MatrixError."""
    subject, plan, session = made.subject, made.plan, made.session
    if not parsed.axis:
        return jointly(*stacks(subject, parsed), plan, session, is_cheap)
    axis = AxisName(parsed.axis)
    if not made.clones:
        return along_releases(subject, axis, parsed, plan, session)
    (clone,) = made.clones
    good, bad = clone.commit(parsed.good), clone.commit(parsed.bad)
    differ(good.id, bad.id)
    call = subject.failure.contract
    reads = reads_only(subject.failure, subject.level)
    suspects = partial(made.reader.suspects, call, clone) if reads and call else none_built
    return Searcher(subject, axis, clone, plan, session, suspects).between(good, bad)


def print_found(found: Bisection | Joint, parsed: argparse.Namespace, more: Mapping[str, str] = NOTHING) -> int:
    """Print a result, and `more` lines, and write its page; return 0 when it is unique, 1 when it is ambiguous."""
    if isinstance(found, Joint):
        return print_joint(found, parsed, more)
    summary = report.summarize(found)
    page = write_pages(summary, found, parsed.out)
    more = {**more, "issue": str(page.with_suffix(".md"))} if more else more
    if parsed.json:
        print(json_object("bisect/1", [{**summary.to_json(), **more}]))
    else:
        failure = [] if parsed.own else statement(found.subject.failure)
        show(*render(summary, str(page)), *(Prose(line, 2) for line in failure), *lines_of(more))
    return ExitStatus.BAD if found.found.kind is ResultKind.AMBIGUOUS else ExitStatus.GOOD


def lines_of(more: Mapping[str, str]) -> list[str]:
    """Return further results as indented lines."""
    return [f"  {name}: {value}" for name, value in more.items()]


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
    held = ("bad", "axis", "base", "torch", "mcore", "te", "driver")
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
    good, bad = ends_of(made, parsed)
    if own.metric:
        failure, session = made.subject.failure, replace(made.session, read=metric_of)
        noise = measured(session, failure, good, bad, parsed.worse_than, parsed.confidence)
        say(f"good: {noise.good}; bad: {noise.bad}")
        checks = CHECKS_MEASURED if parsed.checks is None else parsed.checks
        made = replace(made, session=session, plan=replace(made.plan, noise=noise, checks=checks))
        found = searched(made, parsed)
        if isinstance(found, Bisection):
            found = confirmed(found, noise, session)
        return print_found(found, parsed, {"draft": str(own.draft(folder, found))})
    if not signatures:
        first = replace(made.session, read=ended)
        records = ran(first, made.subject.failure, good, bad, Noise(parsed.shows).tries(parsed.confidence))
        signatures = (learn(records[-1], bad, made.subject.failure),)
        own.write(root, signatures)
        made = opened(parsed, stack)
        made.session.ran, made.session.seconds = first.ran, first.seconds
        keep_judged(made.session.store, made.subject.failure, records)
    say(f"bad is this signature; edit {entry}, or give --signature FILE, to change it:")
    say("".join(map(signature_text, signatures)).strip())
    found = searched(made, parsed)
    if made.plan.noise == CERTAIN:
        found = twice(found, made.session)
    found = replace(found, ran=made.session.ran, seconds=made.session.seconds)
    return print_found(found, parsed, {"draft": str(own.draft(folder, found))})


def ends_of(made: Opened, parsed: argparse.Namespace) -> tuple[End, End]:
    """Return the good and the bad end of a search. Raises MatrixError."""
    differ(parsed.good, parsed.bad)
    if not parsed.axis:
        subject, one, other = stacks(made.subject, parsed)
        packages = differing(subject, one, other)[0]
        of_good, of_bad = (
            End(mixture(subject, one, other, taken).planned(), shown(one, other, packages, taken))
            for taken in (frozenset[str](), frozenset(packages))
        )
        return of_good, of_bad
    axis = AxisName(parsed.axis)
    if made.clones:
        (clone,) = made.clones
        good, bad = (clone.commit(name) for name in (parsed.good, parsed.bad))
        differ(good.id, bad.id)
        of_good, of_bad = (End(axes.at_commit(made.subject, axis, clone, one.id), str(one)) for one in (good, bad))
        return of_good, of_bad
    history, swapped = released_between(made.subject, axis, parsed)
    old, new = (End(history.case_at(place), history.points[place].label) for place in (0, len(history.points) - 1))
    return (new, old) if swapped else (old, new)


def say(text: str) -> None:
    """Print a line to standard error."""
    print(visible(text), file=sys.stderr, flush=True)


def subject_of(known: Catalog, parsed: argparse.Namespace) -> Subject:
    """Return what the options hold fixed. Raises MatrixError where they conflict or a version is missing."""
    failure = known.failure(parsed.failure)
    case, level = axes.choose_case(failure, Level(parsed.level) if parsed.level else None, parsed.case)
    mcore, te = axes.side_of(parsed.mcore, Package.MCORE), axes.side_of(parsed.te, Package.TE)
    subject = Subject(known, failure, case, level, "", mcore, te, parsed.driver, parsed.writer)
    if not parsed.axis:
        if not (parsed.good and parsed.bad) or parsed.repo or parsed.base or parsed.torch:
            raise MatrixError(
                "neither an axis nor two stacks",
                expected=f"--axis {'|'.join(one.value for one in AxisName)}, or two stacks",
                fix="--good STACK --bad STACK finds the package; a STACK is BASE or BASE/mcore-V/te-V/driver-V",
            )  # fmt: skip
        return replace(subject, base=known.readers[0].id if level is Level.CONTRACT else "")
    axis = AxisName(parsed.axis)
    own = {AxisName.TORCH: parsed.torch or parsed.base, AxisName.CONTAINER: parsed.torch or parsed.base}
    own |= {AxisName.MCORE: parsed.mcore, AxisName.TE: parsed.te}
    own |= {AxisName.WRITER: "" if parsed.writer == NONE else parsed.writer}
    if own.get(axis):
        raise MatrixError(
            f"the axis {axis.value} can't be fixed",
            got=f"{own[axis]} held fixed",
            fix="give its ends with --good and --bad",
        )
    if parsed.repo and axis not in axes.PACKAGES:
        raise MatrixError("--repo requires axis mcore or te", got=f"--axis {axis.value} --repo")
    if parsed.repo and not (parsed.good and parsed.bad):
        raise MatrixError(
            "--repo requires both ends",
            expected="--good REV --bad REV",
            fix="give both; either may be the older commit",
        )
    writes = bool(case.write)
    if not writes and (axis is AxisName.WRITER or parsed.writer != NONE):
        raise MatrixError("this failure reads no checkpoint of another release", got=failure.id)
    needs = (
        ("mcore", mcore, not parsed.own),
        ("te", te, reads_only(failure, level)),
        ("writer", axes.Side(parsed.writer), writes),
    )
    for name, side, needed in needs:
        if needed and side.version == NONE and axis.value != name:
            raise MatrixError(f"--{name} is required: it is the same at every point", got="none", expected=SIDE)
    return replace(subject, base=axes.base_for(subject, parsed.base, parsed.torch, axis))


def stacks(subject: Subject, parsed: argparse.Namespace) -> tuple[Subject, BisectionStack, BisectionStack]:
    """Return the subject and the two stacks that --good and --bad name."""
    differ(parsed.good, parsed.bad)
    lacks = places.engine_of(subject.catalog, parsed, 1)[0].lacks
    good, bad = (
        stack_of(subject.catalog, text, subject.mcore, subject.te, lacks) for text in (parsed.good, parsed.bad)
    )
    if not differing(subject, good, bad)[0]:
        differ(parsed.bad, parsed.bad)
    reads = reads_only(subject.failure, subject.level)
    for text, stack in ((parsed.good, good), (parsed.bad, bad)):
        for name, side, needed in (("mcore", stack.mcore, not parsed.own), ("te", stack.te, reads)):
            if needed and side.version == NONE:
                raise MatrixError(
                    f"the stack has no {name}", got=text, fix=f"--{name} V, or {text}/mcore-V/te-V/driver-none"
                )
    return subject, good, bad


def along_releases(
    subject: Subject, axis: AxisName, parsed: argparse.Namespace, plan: Plan, session: BisectionSession
) -> Bisection:
    """Bisect released versions; without both ends, the whole axis, whose ends must then differ."""
    differ(parsed.good, parsed.bad)
    made, swapped = released_between(subject, axis, parsed)
    if len(made.points) < 2:
        raise MatrixError(
            "the axis has only one point", got=made.points[0].label, expected="at least two", fix=str(made.notes)
        )
    old = ProbeResult.BAD if swapped else ProbeResult.GOOD
    if not (parsed.good and parsed.bad):
        (seen,) = session.settled([made.case_at(0)], [made.points[0].label], plan.noise, 1 - plan.confidence)
        old = seen if seen is not ProbeResult.SKIP else old

    found = bisect(subject, made, old, plan, session, cheap=lambda item: is_cheap(item, session))
    return replace(found, ran=session.ran, seconds=session.seconds)


def released_between(subject: Subject, axis: AxisName, parsed: argparse.Namespace) -> tuple[BisectionAxis, bool]:
    """Return the releases between the ends, and whether the bad end is the older one. Raises MatrixError."""
    lacks = places.engine_of(subject.catalog, parsed, 1)[0].lacks

    def base_of(image: str) -> str:
        known = subject.catalog.base(image)
        if not isinstance(known, Container) or subject.level is Level.GPU or not lacks(image):
            return image
        twin = subject.catalog.twin(known)
        return twin.id if twin else image

    return axes.releases(subject, axis, parsed.good, parsed.bad, base_of)


def is_cheap(item: Planned, session: BisectionSession) -> bool:
    """Return whether a case can be probed without making an environment first."""
    return item.key in session.store.known(1) or environment_folder(item.cell.base).is_dir()


def cells(known: Catalog, parsed: argparse.Namespace) -> CellProbes:
    """Return the probes that run cells, on the engines of `megatrix run`."""
    engine, place = places.engine_of(known, parsed, parsed.at_once)

    return CellProbes(known, engine, parsed.out, warn, place, cache=not parsed.no_cache)


def differ(good: str, bad: str) -> None:
    """Raise MatrixError when both ends are the same point."""
    if good and good == bad:
        raise MatrixError("good and bad are the same point", got=good, expected="two points that behave differently")


def progress(probe: ProbeReport) -> None:
    """Print the result of a probe to standard error."""
    source = "known" if probe.known else f"{probe.seconds:.1f} s"
    seen = probe.seen.value if isinstance(probe.seen, ProbeResult) else "ran"
    print(visible(f"{seen:4}  {probe.label}  [{source}]  {probe.why}"), file=sys.stderr, flush=True)


def write_pages(summary: BisectionSummary, found: Bisection, out: Path) -> Path:
    """Write the page and the text for an issue; return the path of the page."""
    failure = found.subject.failure
    issue = report.issue_text(summary, failure.title)
    sides = "-".join(f"{axis}-{value}" for axis, value in summary.fixed.items())
    path = page_path(out, f"{failure.id}-{summary.case}-by-{summary.axis.value}-{sides[-80:]}")
    write_whole(path, bisection_page(summary, report.headline(summary), failure.title, issue))
    write_whole(path.with_suffix(".md"), issue)
    return path


def print_joint(found: Joint, parsed: argparse.Namespace, more: Mapping[str, str] = NOTHING) -> int:
    """Print an attribution and `more`, and write its page; return 0 when it is unique, 1 when it is ambiguous."""
    summary, failure = joint.summarize(found), found.subject.failure
    path = page_path(parsed.out, f"{failure.id}-{summary.case}-{parsed.good}-{parsed.bad}")
    write_whole(path, joint_page(summary, joint.headline(summary), failure.title))
    if more:
        issue = path.with_suffix(".md")
        write_whole(issue, "\n".join(report.issue_text(one, failure.title) for one in summary.inside.values()))
        more = {**more, "issue": str(issue)}
    if parsed.json:
        print(json_object("bisect/1", [{**summary.to_json(), **more}]))
    else:
        show(*render_joint(summary, str(path)), *lines_of(more))
    return ExitStatus.BAD if summary.ambiguous else ExitStatus.GOOD


def page_path(out: Path, name: str) -> Path:
    """Return the path of a page."""
    safe = "".join(letter if letter.isalnum() or letter in ".-+" else "_" for letter in name)
    return Paths(out).bisections / f"{safe}.html"
