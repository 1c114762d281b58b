"""`megatrix parity`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from matrix.cli.usage import add_command
from matrix.ground.catalog import loading
from matrix.ground.catalog.folders import FAILURES
from matrix.ground.catalog.model import Catalog
from matrix.ground.catalog.stack import MCORE
from matrix.ground.errors import ExitStatus, MatrixError
from matrix.ground.verdicts.text import visible
from matrix.kit.parity.factors import Point
from matrix.prove.authoring import draft, parity_entry
from matrix.prove.execution import interrupt
from matrix.prove.parity.campaigns import CoreResult, ParityRun
from matrix.prove.provision import host
from matrix.prove.store.paths import OUT
from matrix.read import package_source
from matrix.show.parity_text import core_json, layout_lines, search_lines
from matrix.show.terminal import json_object, show

SECONDS = 600  # of a search, for all cores together


def add_parser(commands: Any) -> None:
    """Add the command to the object that argparse's add_subparsers returned."""
    parser = add_command(commands, "parity")
    parser.add_argument(
        "--mcore",
        action="append",
        default=[],
        metavar="CORE",
        help="a release, `all`, a wheel or CLONE@REVISION; may be repeated (default: the newest release)",
    )
    parser.add_argument(
        "--consumer", action="append", default=[], metavar="DIR", help="the folder of a fork or of a release candidate"
    )
    parser.add_argument(
        "--layout",
        action="append",
        default=[],
        metavar="TEXT",
        help='judge this layout alone: "tp=2 sequence_parallel=on"; may be repeated',
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=SECONDS,
        metavar="N",
        help=f"time of the search over all cores (default: {SECONDS})",
    )
    seed = "seed of layouts, weights and data (default: 1)"
    parser.add_argument("--seed", type=int, default=1, metavar="S", help=seed)
    parser.add_argument(
        "--unaided", action="store_true", help="name no failure of the catalog: judge each cause as new"
    )
    covers = "pairwise covers of a core, each with the next seed (default: 1; 0: the catalog's layouts alone)"
    parser.add_argument("--covers", type=int, default=1, metavar="N", help=covers)
    parser.add_argument(
        "--twice", action="store_true", help="judge each layout of the search with two seeds of weights and data"
    )
    parser.add_argument(
        "--entry",
        metavar="ID",
        help="draft the catalog's entry ID: the first --layout is what deviates, the others are its controls",
    )
    parser.add_argument("--out", type=Path, default=OUT, metavar="DIR", help=f"the output folder (default: {OUT})")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(command=parity_command, resume_hint="the same command line continues: what was judged is kept")


def parity_command(parsed: argparse.Namespace) -> int:
    """Print the verdict; return 0 where all is equal, 1 for a deviation, 3 where nothing was decided."""
    interrupt.once()
    if parsed.entry:
        if not parsed.layout:
            raise MatrixError("an entry is drafted from layouts", got="--entry alone", expected="--layout TEXT")
        draft.new_folder(parsed.entry, FAILURES)
    catalog = loading.load()
    search = {"unaided": parsed.unaided, "covers": parsed.covers, "twice": parsed.twice}
    campaign = ParityRun(catalog, parsed.out / "parity", parsed.seed, say, **search)
    cores = cores_of(catalog, parsed)
    if parsed.layout:
        points = [possible(text) for text in parsed.layout]
        results = [campaign.asked(core, points) for core in cores]
        lines = layout_lines(points, parsed.seed, results, os.environ)
        if parsed.entry:
            say(f"{parity_entry.write(parsed.entry, FAILURES, points, results)}: replace every TODO")
    else:
        results = []
        for number, core in enumerate(cores):
            left = parsed.seconds - sum(result.seconds for result in results)
            results.append(campaign.searched(core, left / (len(cores) - number)))
        lines = search_lines(parsed.seed, results, os.environ)
    if parsed.json:
        print(json_object("parity/1", [core_json(result, os.environ) for result in results]))
    else:
        show(*lines)
    return status_of(results)


def status_of(results: list[CoreResult]) -> ExitStatus:
    """Return the exit status of the results."""
    if any(result.deviates for result in results):
        return ExitStatus.BAD
    return ExitStatus.GOOD if results and all(result.decided for result in results) else ExitStatus.NOTHING


def cores_of(catalog: Catalog, parsed: argparse.Namespace) -> list[str]:
    """Return the cores that the options name, the newest release by default. Raises MatrixError for no such source."""
    releases = [str(release.version) for release in catalog.megatron_core]
    named = [core for text in parsed.mcore for core in (releases if text == "all" else [text])]
    cores = [*named, *parsed.consumer] or releases[-1:]
    for source in map(host.load_configuration().resolve, cores):
        package_source.parse(source, MCORE)
    return cores


def possible(text: str) -> Point:
    """Return the point of a text. Raises MatrixError for an impossible one, with the reasons."""
    point = Point.parse(text)
    if problems := point.problems():
        raise MatrixError("this layout is impossible", got=str(point), expected="; ".join(map(str, problems)))
    return point


def say(text: str) -> None:
    """Print progress to standard error."""
    print(visible(text), file=sys.stderr, flush=True)
