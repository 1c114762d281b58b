"""`megatrix plan`."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import cache
from typing import Any

from matrix.catalog import loading
from matrix.catalog.model import Catalog
from matrix.cli import choice, places
from matrix.cli.usage import add_command
from matrix.errors import MatrixError
from matrix.execution.engine import offer_of
from matrix.planning import ci_jobs, statistics
from matrix.planning.planned import Planned
from matrix.provision import configuration, host
from matrix.report.terminal import Part, Prose, show, table


def add_parser(commands: Any) -> None:
    """Add the command to the object that argparse's add_subparsers returned."""
    parser = add_command(commands, "plan")
    choice.add_cases(parser)
    parser.add_argument(
        "--stats",
        action="store_true",
        help="print counts instead: the cases that run on this machine, the missing requirements, the GPUs held at "
        "once; of a night also all possible cases and the reasons",
    )
    parser.add_argument("--format", choices=ci_jobs.FORMATS, help="print the night as jobs of a CI service instead")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    parser.set_defaults(command=plan_command)


def available(known: Catalog, planned: Sequence[Planned]) -> statistics.Availability:
    """Return how many of the cases run on this machine, one base for each processor core at a time."""
    jobs = os.cpu_count() or 1
    engine, here = places.engines(known, jobs), host.look()
    offer = cache(lambda base: offer_of(known, engine, base))
    machines = {level: here.offers(level) for level in {item.level for item in planned}}
    return statistics.availability(known, planned, offer, machines, jobs)


def plan_command(parsed: argparse.Namespace) -> int:
    """Print the cases, their counts, or jobs for a CI service."""
    known = loading.load()
    configuration.load()
    planned, label = choice.chosen(known, parsed)
    if parsed.stats:
        if parsed.format:
            raise MatrixError("--stats and --format exclude each other", got="--stats --format", fix="leave one out")
        counted = statistics.statistics(known, planned, choice.levels_of(parsed)) if label == "night" else []
        found = available(known, planned)
        if parsed.json:
            for one in [*map(vars, counted), {"here": statistics.to_json(found)}]:
                print(json.dumps(one))
        else:
            show(*counts(counted, found))
        return 0
    if parsed.format:
        if label != "night":
            raise MatrixError("--format prints the night only", got=f"--format with --{label}", fix="use --within")
        print(json.dumps(ci_jobs.FORMATS[parsed.format](ci_jobs.jobs(planned, choice.levels_of(parsed)))))
        return 0
    if parsed.json:
        for item in planned:
            print(json.dumps(item.to_json()))
    else:
        show(*(part for item in planned for part in listed(item)))
        show(f"{len(planned)} cases in {len({item.cell.id for item in planned})} cells")
    return 0


def counts(counted: Sequence[statistics.Counts], found: statistics.Availability) -> Iterator[Part]:
    """Yield the counts of a night as a table, then the number of cases that run on this machine."""
    if counted:
        names = [field.name for field in fields(statistics.Counts)]
        yield table([[str(getattr(one, name)) for name in names] for one in counted], names, right=True)
        yield ""
    yield Prose(f"{found.planned} planned, {found.runs} run on this machine, GPUs held at once: {found.held}")
    if found.shared:
        yield Prose(f"{found.shared} of them on gloo in place of NCCL")
    yield from (Prose(f"{count:>6} unavailable: {kind.value}") for kind, count in found.missing.items())


def listed(item: Planned) -> Iterator[Part]:
    """Yield a case, then the reasons for it."""
    yield f"{item.key}  [{item.expectation.value}]"
    yield from (Prose(str(why), 4) for why in item.why)
