"""`megatrix bisect`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from matrix import catalog, interrupt, run
from matrix.bisection import axes, telling
from matrix.bisection.axes import AxisName, Subject
from matrix.bisection.clone import Clone
from matrix.bisection.commits import Searcher
from matrix.bisection.inquiry import FOLDER, Bisection, Inquiry, Notebook, Told, bisect, notebook_name
from matrix.bisection.noise import Noise, Seen
from matrix.bisection.probing import Ask, Cells, Reader, reads_only
from matrix.bisection.search import Kind, Plan
from matrix.catalog import Catalog
from matrix.engine import Engine
from matrix.errors import MatrixError
from matrix.failure import Package
from matrix.outcome import Level
from matrix.plan import Planned
from matrix.versions import NONE
from reports.bisection_page import bisection_page
from reports.files import OUT, write_whole

# Further points that are asked at the end, where the search had no reason to look: reading one takes under a second.
CHECKS_READ: Final = 6
SIDE: Final = "a version, PATH@REV of a clone, a folder or a wheel"


def add_parsers(commands: Any, engines: Callable[[Catalog, int], Engine]) -> None:
    """Add the command to what argparse's add_subparsers returned; `engines` gives what runs cells, so many at once."""
    text = "Find the release, commit, container or driver at which a failure starts or ends."
    parser = commands.add_parser("bisect", help=text, description=text)
    parser.add_argument("failure", metavar="FAILURE", help="an id of the catalog, such as dcp-assertion")
    parser.add_argument("--axis", choices=[one.value for one in AxisName], required=True, help="what changes")
    parser.add_argument("--good", default="", metavar="X", help="a point where it passes; default: an end of the axis")
    parser.add_argument("--bad", default="", metavar="X", help="a point where it fails; default: the other end")
    parser.add_argument("--repo", metavar="CLONE", help="bisect the commits of this clone (axis mcore or te)")
    parser.add_argument(
        "--case", default="", metavar="NAME", help="a case of the failure, such as pp2; default: the first"
    )
    parser.add_argument("--level", choices=[one.value for one in Level], help="default: the least real one there is")
    parser.add_argument("--base", default="", metavar="BASE", help="the base of every point")
    parser.add_argument("--torch", default="", metavar="V", help="the base with this torch")
    parser.add_argument("--mcore", default="", metavar="V", help=f"megatron-core of every point: {SIDE}")
    parser.add_argument("--te", default="", metavar="V", help=f"Transformer Engine of every point: {SIDE}")
    parser.add_argument("--driver", default=NONE, metavar="V", help="the driver of every point")
    parser.add_argument("--at-once", type=int, default=1, metavar="K", help="points to ask at once (1)")
    parser.add_argument("--shows", type=float, default=1.0, metavar="P", help="chance that a run shows the failure (1)")
    parser.add_argument("--confidence", type=float, default=0.95, metavar="C", help="claim nothing below this (0.95)")
    parser.add_argument(
        "--checks", type=int, metavar="N", help=f"points to check at the end ({CHECKS_READ} where reading is enough)"
    )
    parser.add_argument("--no-cache", action="store_true", help="ask again what was asked before")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("MEGATRIX_OUT", OUT)), help="output folder")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.set_defaults(command=bisect_command, engines=engines)


def bisect_command(parsed: argparse.Namespace) -> int:
    """Print the answer; return 0 when there is one, 1 when it is ambiguous."""
    interrupt.once()
    known = catalog.load()
    subject, axis = subject_of(known, parsed), AxisName(parsed.axis)
    reads = reads_only(subject.failure.id, subject.level)
    checks = parsed.checks if parsed.checks is not None else CHECKS_READ if reads else 0
    plan = Plan(parsed.at_once, Noise(parsed.shows), parsed.confidence, checks)
    folder = parsed.out / FOLDER / notebook_name(subject)
    with ExitStack() as stack:
        notebook = Notebook(folder, fresh=parsed.no_cache)
        stack.callback(notebook.close)
        clone = stack.enter_context(Clone(parsed.repo, axes.PACKAGES[axis].value)) if parsed.repo else None
        ask: Ask = Reader(known, [clone] if clone else []) if reads else cells(known, parsed)
        inquiry = Inquiry(ask, notebook, progress)
        if clone:
            good, bad = clone.commit(parsed.good), clone.commit(parsed.bad)
            differ(good.id, bad.id)
            found = Searcher(subject, axis, clone, plan, inquiry).between(good, bad)
        else:
            found = along_releases(subject, axis, parsed, plan, inquiry)
    told = telling.to_json(found)
    page = write_pages(told, found, parsed.out)
    print(json.dumps(told) if parsed.json else telling.in_words(told, str(page)))
    return 1 if found.found.kind is Kind.AMBIGUOUS else 0


def subject_of(known: Catalog, parsed: argparse.Namespace) -> Subject:
    """Return what the options hold fixed. Raises MatrixError where they contradict each other or leave a side open."""
    axis, failure = AxisName(parsed.axis), known.failure(parsed.failure)
    case, level = axes.choose_case(failure, Level(parsed.level) if parsed.level else None, parsed.case)
    own = {AxisName.TORCH: parsed.torch or parsed.base, AxisName.CONTAINER: parsed.torch or parsed.base}
    own |= {AxisName.MCORE: parsed.mcore, AxisName.TE: parsed.te}
    if own.get(axis):
        raise MatrixError(
            f"{axis.value} is what changes", got=f"{own[axis]} held fixed", fix="name its ends by --good and --bad"
        )
    if parsed.repo and axis not in axes.PACKAGES:
        raise MatrixError("only mcore and te are bisected by commits", got=f"--axis {axis.value} --repo")
    if parsed.repo and not (parsed.good and parsed.bad):
        raise MatrixError("commits need both ends", expected="--good REV --bad REV", fix="whichever is older")
    mcore, te = axes.side_of(parsed.mcore, Package.MCORE), axes.side_of(parsed.te, Package.TE)
    reads = reads_only(failure.id, level)
    for name, side, needed in (("mcore", mcore, True), ("te", te, reads)):
        if needed and side.version == NONE and axis.value != name:
            raise MatrixError(f"needs --{name}: it is the same at every point", got="none", expected=SIDE)
    subject = Subject(known, failure, case, level, "", mcore, te, parsed.driver)
    base = axes.base_for(subject, parsed.base, parsed.torch, axis)
    return subject.with_side(AxisName.TORCH, axes.Side(base))


def along_releases(
    subject: Subject, axis: AxisName, parsed: argparse.Namespace, plan: Plan, inquiry: Inquiry
) -> Bisection:
    """Bisect released versions; without both ends, the whole axis, whose ends then have to differ."""
    differ(parsed.good, parsed.bad)
    made, swapped = axes.releases(subject, axis, parsed.good, parsed.bad)
    old = Seen.BAD if swapped else Seen.GOOD
    if not (parsed.good and parsed.bad):
        first = made.case_at(0)
        seen = next(iter(inquiry.seen([first], [made.points[0].label], [0])))
        inquiry.records.clear()  # the search asks for it again, and is told from the notebook
        old = seen if seen is not Seen.SKIP else old

    def at_hand(item: Planned) -> bool:
        return item.key in inquiry.notebook.known(1) or run.environment_folder(item.cell.base).is_dir()

    return bisect(subject, made, old, plan, inquiry, cheap=at_hand)


def cells(known: Catalog, parsed: argparse.Namespace) -> Cells:
    """Return what asks by running cells, on the engines of `megatrix run`."""
    engine = parsed.engines(known, parsed.at_once)
    return Cells(
        known, engine, parsed.out, lambda text: print(f"megatrix: {text}", file=sys.stderr), cache=not parsed.no_cache
    )


def differ(good: str, bad: str) -> None:
    """Raise MatrixError when both ends are the same point."""
    if good and good == bad:
        raise MatrixError("good and bad are the same point", got=good, expected="two points that behave differently")


def progress(told: Told) -> None:
    """Say of a probe what it came to, on standard error."""
    source = "known" if told.known else f"{told.seconds:.1f} s"
    print(f"{told.seen.value:4}  {told.label[:90]}  [{source}]  {told.why[:120]}", file=sys.stderr, flush=True)


def write_pages(told: dict[str, Any], found: Bisection, out: Path) -> Path:
    """Write the page and the text for an issue; return the page's path."""
    failure = found.subject.failure
    sides = "-".join(f"{axis}-{value}" for axis, value in told["fixed"].items())
    name = "".join(letter if letter.isalnum() or letter in ".-+" else "_" for letter in sides)[-80:]
    path = out / FOLDER / f"{failure.id}-{told['case']}-by-{told['axis']}-{name}.html"
    issue = telling.issue_text(told, failure.title)
    write_whole(path, bisection_page(told, telling.headline(told), failure.title, issue))
    write_whole(path.with_suffix(".md"), issue)
    return path
