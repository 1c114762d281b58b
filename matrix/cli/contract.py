"""`megatrix contract` and `megatrix surface record`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from matrix.contract import finding as findings
from matrix.contract import reading, recording, table
from matrix.contract.recording import MCORE, SUFFIX, TE
from matrix.contract.surface import Surface
from matrix.errors import MatrixError
from matrix.provision import sources
from matrix.provision.sources import Contents, Kind

SIDE = f"a recorded version, tag or commit, a *{SUFFIX} file, a wheel, a folder, or PATH@REV; default: all releases"


def add_parsers(commands: Any) -> None:
    """Add both commands to what argparse's add_subparsers returned; each sets `command` to its function."""
    text = "Hold every call that megatron-core makes into Transformer Engine against the signature it meets there."
    contract = commands.add_parser("contract", help=text, description=text)
    contract.add_argument("--mcore", metavar="V", help=f"Megatron-LM: {SIDE}")
    contract.add_argument("--te", metavar="V", help=f"Transformer Engine: {SIDE}")
    contract.add_argument("--json", action="store_true", help="one JSON object per finding and line")
    contract.set_defaults(command=contract_command)
    text = "Record what a source offers (Transformer Engine) or calls (Megatron-LM)."
    surface = commands.add_parser("surface", help=text, description=text)
    actions = surface.add_subparsers(required=True, metavar="record")
    record = actions.add_parser("record", help=text, description=text)
    record.add_argument("source", metavar="SOURCE", help="a wheel, a folder, or PATH@REV")
    record.add_argument("-o", "--output", type=Path, metavar="FILE", help=f"default: ./PACKAGE-VERSION{SUFFIX}")
    record.add_argument("--as", dest="version", metavar="VERSION", help="the version it is to have; default: its own")
    record.set_defaults(command=record_command)


def contract_command(parsed: argparse.Namespace) -> int:
    """Print the findings; return 1 where both sides are named and a call surely breaks or is misbound, else 0.

    Over many pairs there is always a break somewhere, so their findings are a report and no verdict.
    """
    consumers = [reading.calls_of(text) for text in ([parsed.mcore] if parsed.mcore else recording.released(MCORE))]
    offers = [reading.surface_of(text) for text in ([parsed.te] if parsed.te else recording.released(TE))]
    found: list[findings.Finding] = []
    for calls in consumers:
        for surface in offers:
            new = findings.find(calls, surface)
            found += new
            if parsed.json:
                for one in new:
                    print(json.dumps(one.to_json()))
    if not parsed.json:
        print(table.table(found, [one.version for one in consumers], [one.version for one in offers]), end="")
    broken = any(one.kind in (findings.Kind.DEFINITE, findings.Kind.MISBOUND) for one in found)
    return int(broken and bool(parsed.mcore and parsed.te))


def record_command(parsed: argparse.Namespace) -> int:
    """Record a source into a file and say what is in it."""
    package, contents = identify(parsed.source)
    facts = reading.extract(package, contents, parsed.version)
    output = parsed.output or Path(f"{package}-{facts.version}{SUFFIX}")
    recording.write(facts, output)
    held = f"{len(facts.modules)} modules" if isinstance(facts, Surface) else f"{len(facts.uses)} uses"
    print(f"{output}: {package} {facts.version}, {held}, {output.stat().st_size} bytes")
    return 0


def identify(text: str) -> tuple[str, Contents]:
    """Return which package a source is, and its contents. Raises MatrixError when it is neither."""
    errors = []
    for package in (TE, MCORE):
        try:
            source = sources.parse(text, package)
            if source.kind is Kind.PYPI:
                raise MatrixError(
                    "a release has to be on this machine to be read", got=text,
                    expected="a wheel, a folder or PATH@REV",
                    fix=f"pip download --no-deps PACKAGE=={text}, and name the wheel",
                )  # fmt: skip
            return package, sources.inspect(source)
        except MatrixError as error:
            errors.append(error)
    first, second = errors
    if first.what == second.what:
        raise first
    raise MatrixError(
        "this is neither Transformer Engine nor Megatron-LM", where=text, got=f"{first.what}; {second.what}",
        expected="the top of a source tree, or a wheel of one of them",
    )  # fmt: skip
