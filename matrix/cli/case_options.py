"""The options that select cases and levels, those of a run, and the requests that they make."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from matrix.cli import results
from matrix.cli.usage import add_arguments
from matrix.ground.catalog.failure import Expectation, Level
from matrix.ground.catalog.machine import Compiled
from matrix.ground.catalog.model import HOST, LABEL, Catalog
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.planned import Planned
from matrix.prove.authoring import claims
from matrix.prove.execution import runner
from matrix.prove.planning.case_request import (
    CaseRequest,
    InstalledBase,
    PackageSource,
    host_cases,
    requested_cases,
    requested_levels,
    selection,
)
from matrix.prove.planning.rerun import RERUN, RERUN_HERE
from matrix.prove.provision import bundle_folder, host
from matrix.prove.store.paths import NIGHT, OUT
from matrix.read import package_source
from matrix.read.machine import installed

LONGEST_MIN: Final = 525_600  # minutes of --time-limit: a year; the night takes half an hour


HELP_WORDS: Final = {"FORMS": package_source.FORMS}


def request_of(parsed: argparse.Namespace) -> CaseRequest:
    """Return the request that the options make on this machine."""
    on_cluster = getattr(parsed, "engine", "") == "slurm"
    texts = {"source": parsed.mcore, "te_source": parsed.te, "writer_source": parsed.writer}
    has_gpu = not parsed.level and not on_cluster and bool(host.look().machine.listed)
    return CaseRequest(
        requested_levels(parsed.level or (), on_cluster=on_cluster, has_gpu=has_gpu),
        parsed.select or "",
        parsed.within or "",
        tuple(parsed.case or ()),
        {name: text for name, text in texts.items() if text},
        parsed.compile,
        Expectation(parsed.expect) if parsed.expect else None,
        parsed.here,
        on_cluster,
        parsed.smoke or 0,
        parsed.line or "",
        parsed.all,
        parsed.k or "",
    )


def selected(known: Catalog, request: CaseRequest) -> tuple[list[Planned], str]:
    """Return the cases of a request, and a label for the run. Raises MatrixError."""
    return requested_cases(known, request, _inspected, _installed)


def environment_cases(known: Catalog) -> tuple[Catalog, list[Planned]]:
    """Return the catalog with the environment of this process as the base `host`, and the cases there."""
    return host_cases(known, _installed(), tuple(Level))


def _inspected(field: str, text: str) -> PackageSource:
    contents = package_source.inspect(
        package_source.parse(text, "transformer-engine" if field == "te_source" else "megatron-core")
    )
    on_pypi = contents.source.kind is package_source.SourceKind.PYPI
    return PackageSource(str(contents.source), contents.version, contents.source.revision if on_pypi else "")


def _installed() -> InstalledBase:
    environment = installed.current()
    torch, cuda = environment.packages.get("torch", ""), environment.torch_cuda or ""
    compiled = tuple(build.te for build in installed.compiled() if build == Compiled.of(build.te, torch, cuda))
    return InstalledBase(environment.packages, environment.minor, os.environ.get(LABEL, ""), compiled)


# A folder in the output folder: a run that is red by design stays out of the history of nights.
BROKEN = "broken-on-purpose"
PART = "part"  # the label of a run of a part of the night


def parser_of(table: str) -> argparse.ArgumentParser:
    """Return a parser of one table of commands/shared.toml: of "run", or of its "plan"."""
    parser = argparse.ArgumentParser(add_help=False)
    add_arguments(parser, {table: "shared"}, HELP_WORDS)
    return parser


def actions(table: str) -> list[argparse.Action]:
    """Return the options of a table of commands/shared.toml."""
    return parser_of(table)._actions


def command_words(parsed: argparse.Namespace, resume: str = "") -> list[str]:
    """Return the arguments that make the same request as `parsed`, or that resume a run of it with the same options."""
    own = {action.dest for action in actions("plan")} | {"resume"} if resume else set()
    words = ["run", *(["--resume", resume] if resume else [])]
    for action in actions("run"):
        value = getattr(parsed, action.dest)
        usual = OUT if action.dest == "out" else action.default  # $MEGATRIX_OUT may be of one command only
        if value == usual or action.dest in own or f"{value}/start.py" in os.environ.get("MEGATRIX_COMMAND", ""):
            continue  # start.py adds its --bundle
        name = action.option_strings[-1]
        for text in map(str, value if isinstance(value, list) else [value]):
            words += [name] if action.nargs == 0 else [f"{name}={text}"] if name.startswith("--") else [name, text]
    return words


def bundled(parsed: argparse.Namespace) -> tuple[bundle_folder.Bundle | None, Mapping[str, str]]:
    """Return the checked bundle, if one is given, and the variables of the run.

    With a bundle they name its packages and clones alone. Raises MatrixError for a damaged bundle, and for a mistake in
    the settings, which is thus reported once, not by each case.
    """
    bundle: bundle_folder.Bundle | None = None
    environ: Mapping[str, str] = os.environ
    if parsed.bundle:
        bundle = bundle_folder.verified(parsed.bundle.absolute())
        environ = bundle_folder.variables(parsed.bundle.absolute(), bundle, os.environ)
    host.load_configuration(environ)
    return bundle, environ


def cases_of_bundle(parsed: argparse.Namespace, bundle: bundle_folder.Bundle) -> CaseRequest:
    """Return the request of a run from a bundle: that of the options, else the cases for which it was made."""
    request = request_of(parsed)
    if any((parsed.select, parsed.within, parsed.smoke, parsed.case, parsed.here, parsed.line)):
        return request
    levels = requested_levels(parsed.level or [bundle.level], on_cluster=request.on_cluster, has_gpu=False)
    if bundle.base == HOST:
        return replace(request, levels=levels, here=True, select=bundle.select)
    if bundle.select:
        return replace(request, levels=levels, select=selection(bundle.base, bundle.select))
    return replace(request, levels=levels, within=selection(bundle.base))


def checked_limit(parsed: argparse.Namespace) -> float | None:
    """Return the seconds of --time-limit. Raises MatrixError for a number that an option does not take."""
    for option, count in (("--jobs", parsed.jobs), ("-n", parsed.workers), ("--smoke", parsed.smoke)):
        if count is not None and count < 1:
            raise MatrixError(f"{option} must be at least 1", got=f"{option} {count}", expected=">= 1")
    if parsed.time_limit is None:
        return None
    if not 0 < parsed.time_limit <= LONGEST_MIN:
        expected = f"minutes above 0 and at most {LONGEST_MIN:,}"
        raise MatrixError("no such --time-limit", got=f"{parsed.time_limit}", expected=expected, fix="--time-limit 60")
    return 60 * float(parsed.time_limit)


def requested(catalog: Catalog, parsed: argparse.Namespace) -> runner.Request:
    """Return the request that the options of a run make. Raises MatrixError."""
    limit_s = checked_limit(parsed)
    bundle, environ = bundled(parsed)
    request = resumed(parsed) if parsed.resume is not None else new(catalog, parsed, bundle)
    if parsed.here:  # for the rerun commands of the plan; its pytest sets the same
        environ = {RERUN: RERUN_HERE, **environ}
    if parsed.mps:
        environ = {**environ, "MEGATRIX_MPS": "1"}
    return replace(request, limit_s=limit_s, environ=environ)


def resumed(parsed: argparse.Namespace) -> runner.Request:
    """Return the request to finish an earlier run. Raises MatrixError with an option that selects cases."""
    if any(getattr(parsed, action.dest) for action in actions("plan") if action.dest != "line"):
        raise MatrixError(
            "a resumed run keeps its plan", expected="--resume without options that select cases", fix="leave one out"
        )
    name = parsed.resume or results.newest(parsed.out, parsed.line or NIGHT)
    if parsed.line and not name.endswith(f"-{parsed.line}"):
        raise MatrixError(
            "no run of this line",
            got=name,
            expected=f"a run of line {parsed.line} in {parsed.out}",
            fix="leave --resume out",
        )
    stored = runner.earlier(parsed.out, name)
    return runner.Request(stored.planned, parsed.out, not parsed.no_cache, stored, parsed.engine == "slurm")


def new(catalog: Catalog, parsed: argparse.Namespace, bundle: bundle_folder.Bundle | None) -> runner.Request:
    """Return the request for a new run of the selected cases; --break has its own folder. Raises MatrixError."""
    request = cases_of_bundle(parsed, bundle) if bundle else request_of(parsed)
    planned, label = selected(catalog, request)
    label = PART if label == NIGHT and (request.within or parsed.smoke or parsed.level or parsed.k) else label
    planned = results.last_red(planned, parsed.out, label) if parsed.lf else planned
    planned = results.durations(catalog, parsed.out).timed(planned)
    if not parsed.break_:
        return runner.Request(planned, parsed.out, not parsed.no_cache, label=label)
    catalog.failure(parsed.break_)
    return runner.Request(claims.swapped(planned, parsed.break_), parsed.out / BROKEN, cache=False, label="break")
