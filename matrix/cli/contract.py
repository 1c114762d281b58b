"""`megatrix contract`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matrix.cli.command_options import add_findings
from matrix.cli.usage import add_command
from matrix.ground.catalog import loading
from matrix.ground.errors import ExitStatus, MatrixError
from matrix.ground.verdicts.outcome import Outcome, OutcomeKind, Raised
from matrix.ground.verdicts.signature_match import owner
from matrix.read.api import pairs, recording, sides
from matrix.read.api.finding import BREAKING, Finding
from matrix.read.api.provider import TRANSFORMER_ENGINE
from matrix.read.api.recording import MCORE, SUFFIX, TE
from matrix.read.api.relevance import is_yanked
from matrix.show import contract_table
from matrix.show.findings import FORMATS, of_contract
from matrix.show.known import statement
from matrix.show.terminal import json_object, paragraphs, show

SIDE = f"a recorded version, tag or commit, a *{SUFFIX} file, a wheel, a folder, or PATH@REV (default: all releases)"


def add_parser(commands: Any) -> None:
    """Add the command to the object that argparse's add_subparsers returned."""
    parser = add_command(commands, "contract")
    parser.add_argument("--mcore", metavar="V", help=f"Megatron-LM: {SIDE}")
    parser.add_argument("--te", metavar="V", help=f"Transformer Engine: {SIDE}")
    project = "a fork, framework or training code: a folder, a wheel or PATH@REV; or megatron-core[==V]"
    parser.add_argument("--consumer", metavar="PROJECT", help=project)
    called = f"what the consumer calls: {sides.FORMS}; several times too (default: as declared, or megatron-core)"
    parser.add_argument("--against", metavar="PACKAGE", action="append", help=called)
    folded = "with withdrawn releases, pairs that nobody runs, and breaks that come after another one"
    parser.add_argument("--all", action="store_true", help=folded)
    add_findings(parser, "contract")
    parser.set_defaults(command=contract_command)


def contract_command(parsed: argparse.Namespace) -> int:
    """Print the findings; return 1 where releases are selected and a call surely raises or is misbound, else 0.

    Over all releases some call always breaks, so the exit status is 0 there.
    """
    if parsed.consumer:
        if parsed.mcore or parsed.te:
            raise MatrixError("--consumer replaces --mcore and --te", fix=f"--against {TE}=={parsed.te or 'VERSION'}")
        named = [sides.target_of(text) for text in parsed.against or ()]
        return _consumer(parsed, named or sides.declared_targets(parsed.consumer))
    if parsed.against:
        raise MatrixError("--against needs a consumer", fix="--consumer PROJECT")
    cores = [sides.calls_of(text) for text in _sides(parsed.mcore, MCORE, parsed.all)]
    engines = [sides.surface_of(text) for text in _sides(parsed.te, TE, parsed.all)]
    findings = pairs.findings(cores, TRANSFORMER_ENGINE, engines)
    versions = [calls.version for calls in cores], [surface.version for surface in engines]
    if not _printed(parsed, findings, versions[1], ""):
        is_whole = parsed.all or (parsed.mcore and parsed.te)
        show(
            *paragraphs(
                (contract_table.table if is_whole else contract_table.folded)(findings, *versions, known=_known())
            )
        )
    return ExitStatus.BAD if parsed.mcore and parsed.te and _is_broken(findings) else ExitStatus.GOOD


def _known() -> contract_table.Known:
    """Return a function that returns what the catalog states about a break, as lines."""
    failures = loading.load().failures

    def lines(finding: Finding) -> list[str]:
        outcome = Outcome(OutcomeKind.RAISED, chain=(Raised(finding.error, finding.message),))
        failure = owner(failures, outcome) if finding.kind in BREAKING else None
        return statement(failure) if failure else []

    return lines


def _sides(named: str | None, package: str, whole: bool) -> list[str]:
    """Return the named side, or the releases of a package without the withdrawn ones."""
    return [named] if named else [v for v in recording.released(package) if whole or not is_yanked(package, v)]


def _consumer(parsed: argparse.Namespace, targets: Sequence[sides.Target]) -> int:
    status = ExitStatus.GOOD
    findings: list[Finding] = []
    versions: list[str] = []
    tables: list[str] = []
    for target in targets:
        consumers = sides.consumers_of(parsed.consumer, target.provider)
        surfaces = target.surfaces()
        breaks = pairs.findings(consumers, target.provider, surfaces)
        names, releases = [calls.version for calls in consumers], [surface.version for surface in surfaces]
        tables.append(contract_table.releases(breaks, names, releases, target.provider, whole=parsed.all))
        findings, versions = findings + breaks, versions + releases
        status = ExitStatus.BAD if target.chosen and _is_broken(breaks) else status
    if not _printed(parsed, findings, versions, parsed.consumer):
        show(*(part for text in tables for part in paragraphs(text)))
    return status


def _printed(parsed: argparse.Namespace, findings: Sequence[Finding], versions: Sequence[str], root: str) -> bool:
    """Print the findings for a program and return True, if an option selects that."""
    if parsed.json:
        print(json_object("contract/1", (finding.to_json() for finding in findings)))
    elif parsed.format:
        print(FORMATS[parsed.format](of_contract(findings, versions, _folder(root))))
    return bool(parsed.json or parsed.format)


def _folder(project: str) -> str:
    """Return the path from the current folder to a project, "" where it is not inside: annotations need it."""
    path = Path(project.partition("@")[0] or ".")
    relative = os.path.relpath(path) if path.is_dir() else "."
    return "" if relative == "." or relative.startswith("..") else f"{Path(relative).as_posix()}/"


def _is_broken(findings: Sequence[Finding]) -> bool:
    return any(finding.kind in BREAKING and not finding.masked for finding in findings)
