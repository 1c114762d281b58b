"""`megatrix plan`."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final

from matrix.cli import case_options, places, results
from matrix.ground.cases.machine_requirements import BaseOffer, offered
from matrix.ground.catalog import loading
from matrix.ground.catalog.codec import encode
from matrix.ground.catalog.folders import default_root
from matrix.ground.catalog.model import HOST, Catalog, Container
from matrix.ground.errors import ExitStatus, MatrixError, counted
from matrix.ground.verdicts.planned import Kind, Planned
from matrix.prove.execution.engine import offer_of
from matrix.prove.planning import catalog_lines, statistics
from matrix.prove.planning.statistics import DEFAULT_TEXT, Availability, Basis
from matrix.prove.provision import case_overlays, host
from matrix.prove.provision.indexes import uv_variable
from matrix.prove.provision.overlays import Overlays
from matrix.read.machine import installed
from matrix.show.terminal import Part, Prose, json_object, show

HELP_WORDS: Final = case_options.HELP_WORDS


def available(known: Catalog, planned: Sequence[Planned], out: Path, missing: Collection[Container]) -> Availability:
    """Return how many of the cases run here, and for how long, as `run` runs them by default.

    `missing` are images that are not local and count as if they were.
    """
    jobs, machine = os.cpu_count() or 1, host.look()
    engine, ids = places.engines(known, jobs), {image.id for image in missing}
    settings = host.load_configuration()

    @cache
    def offer(base: str) -> BaseOffer:
        return offered(known, base, clones=settings.sources) if base in ids else offer_of(known, engine, base, settings)

    machines = {level: machine.offers(level) for level in {item.level for item in planned}}
    parallel = statistics.Parallel(jobs, places.workers_for(planned, machine), jobs)
    here = [item for item in planned if item.cell.base == HOST and not uv_variable(os.environ)]
    laid = Overlays(default_root())
    unlaid = case_overlays.unlaid(here, installed.current(), settings, laid) if here else frozenset()
    rest = [item for item in planned if item.key not in unlaid]
    counted = statistics.availability(known, rest, offer, machines, results.durations(known, out), parallel)
    lacking = {**counted.missing, Kind.UV: len(unlaid)} if unlaid else counted.missing
    return replace(counted, planned=len(planned), missing=lacking)


def plan_command(parsed: argparse.Namespace) -> int:
    """Print the cases, their counts, or jobs for a CI service."""
    catalog = loading.load()
    host.load_configuration()
    request = case_options.request_of(parsed)
    planned, label = case_options.selected(catalog, request)
    if parsed.stats:
        if parsed.format:
            raise MatrixError("--stats and --format exclude each other", got="--stats --format", fix="leave one out")
        absent = places.missing_images(catalog, planned)
        availability = available(catalog, planned, parsed.out, absent if parsed.pull else ())
        if parsed.json:
            here = {**statistics.to_json(availability), "images_to_pull": [image.tag for image in absent]}
            print(json_object("plan-stats/1", [{"here": here}]))
        else:
            show(*counts(availability), *pulls(absent, pulled=parsed.pull))
        return ExitStatus.GOOD
    if parsed.format:
        if label != "night":
            raise MatrixError("--format prints the night only", got=f"--format with --{label}", fix="use --within")
        print(json.dumps(statistics.FORMATS[parsed.format](statistics.jobs(planned, request.levels))))
        return ExitStatus.GOOD
    if parsed.json:
        print(json_object("plan/1", map(encode, planned)))
    else:
        if request.line:
            show(f"{request.line}: {catalog_lines.named(catalog, request.line).description}")
        cells = len({item.cell.id for item in planned})
        title = f"{counted(len(planned), 'case')} in {counted(cells, 'cell')}"
        show(title, *(part for item in planned for part in listed(item)))
    return ExitStatus.GOOD


def counts(found: Availability) -> Iterator[Part]:
    """Yield the number of cases that run on this machine, what they take, and what the others lack."""
    yield Prose(f"{found.planned} planned, {found.runs} run on this machine")
    if found.runs:
        gpu_minutes = counted(found.gpu_seconds / 60, "GPU-minute")
        yield Prose(f"expected: at least {counted(found.seconds / 60, 'minute')}, {gpu_minutes}")
        yield from (Prose(f"{count:>6} by {basis.value}") for basis, count in found.basis.items())
    if Basis.DEFAULT in found.basis:
        yield Prose(f"default of a case: {DEFAULT_TEXT}")
    for build in found.builds:
        minutes = counted(build.minutes, "minute")
        yield Prose(f"builds Transformer Engine {build.te} on {build.base}, once: about {minutes}")
    if found.shared:
        yield Prose(f"in {found.shared} of them ranks share a GPU, in {found.gloo} on gloo in place of NCCL")
    for kind, count in found.missing.items():
        parts = filter(None, (f"{count:>6} unavailable: {kind.value}", found.reasons.get(kind)))
        yield Prose(", for example: ".join(parts))


def pulls(absent: Collection[Container], *, pulled: bool) -> Iterator[Part]:
    """Yield the images that `run --pull` pulls."""
    if absent:
        text = "" if pulled else "; --pull counts their cases"
        yield Prose(f"images to pull: {len(absent)}, sizes not in the catalog{text}")
        yield from (Prose(image.tag, 2) for image in absent)


def listed(item: Planned) -> Iterator[Part]:
    """Yield a case, then the reasons for it."""
    yield f"{item.key}  [{item.expectation.value}]"
    yield from (Prose(str(why), 4) for why in item.why)
