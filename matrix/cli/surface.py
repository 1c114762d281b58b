"""`megatrix surface record` and `megatrix surface pairs`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from matrix.ask.check.table import listed
from matrix.cli.usage import add_arguments, add_command, described
from matrix.ground.catalog import loading
from matrix.ground.catalog.versions import NONE
from matrix.ground.errors import ExitStatus, MatrixError
from matrix.read import package_source
from matrix.read.api import pairs, recording, sides
from matrix.read.api.api import Surface
from matrix.read.api.provider import TORCH, Calls, provider_of
from matrix.read.api.recording import MCORE, SUFFIX, TE
from matrix.read.package_source import Contents, SourceKind
from matrix.show.terminal import plain


def add_parser(commands: Any) -> None:
    """Add the command to the object that argparse's add_subparsers returned."""
    surface = described("surface")
    actions = add_command(commands, "surface", record_command).add_subparsers(required=True, metavar="record|pairs")
    for name, function in (("pairs", pairs_command), ("record", record_command)):
        add_arguments(add_command(actions, name, function, surface), surface.parts[name])


def record_command(parsed: argparse.Namespace) -> int:
    """Record a source into a file and print a summary of its content."""
    facts: Surface | Calls
    package, provider = parsed.api, provider_of(parsed.into or TE)
    if package:
        facts = sides.surface_of_source(parsed.source, provider_of(package), parsed.version)
    elif bridge := sides.calls_of_wheel(parsed.source, provider):
        package, facts = bridge.consumer, bridge
    else:
        package, contents = _identify(parsed.source)
        if package == provider.package:
            facts = sides.extract_surface(contents, parsed.version)
        else:
            facts = pairs.trimmed(sides.extract_calls(contents, parsed.version, provider), provider)
    output = parsed.output or Path(f"{package}-{facts.version}{SUFFIX}")
    recording.write(facts, output)
    size = f"{len(facts.modules)} modules" if isinstance(facts, Surface) else f"{len(facts.uses)} uses"
    print(plain(f"{output}: {package} {facts.version}, {size}, {output.stat().st_size} bytes"))
    return ExitStatus.GOOD


def pairs_command(parsed: argparse.Namespace) -> int:
    """Record the breaking calls of every pair that the catalog lists: 15 s."""
    catalog = loading.load()
    mcores, tes = ([word.partition("=")[2] for word in listed(catalog, axis)] for axis in ("mcore", "te"))
    tes = [version for version in tes if version != NONE]
    output = parsed.output or pairs.path()
    output.write_bytes(pairs.encode({MCORE: mcores, TE: tes, TORCH.package: recording.recorded_surfaces(TORCH)}))
    size = output.stat().st_size
    print(plain(f"{output}: {len(mcores)} releases of megatron-core, {len(tes)} of TE, {size} bytes"))
    return ExitStatus.GOOD


def _identify(text: str) -> tuple[str, Contents]:
    """Return the package that a source holds, and its contents. Raises MatrixError when it is neither package."""
    errors = []
    for package in (TE, MCORE):
        try:
            source = package_source.parse(text, package)
            if source.kind is SourceKind.PYPI:
                raise MatrixError(
                    "a release is read from a local copy only",
                    got=text,
                    expected="a wheel, a folder or PATH@REV",
                    fix=f"pip download --no-deps PACKAGE=={text}, then give the wheel",
                )
            return package, package_source.inspect(source)
        except MatrixError as error:
            errors.append(error)
    if errors[0].what == errors[1].what:
        raise errors[0]
    raise MatrixError(
        "this is neither Transformer Engine nor Megatron-LM",
        where=text,
        got="; ".join(error.what for error in errors),
        expected="the top of a source tree, or a wheel of one of them",
    )
