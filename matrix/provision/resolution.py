"""uv's resolver on the site's index: whether pinned requirements resolve with all that they require.

Packages that the index has as source alone get their requirements from the caller, so that nothing of them is built.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from matrix.provision.commands import Runner, run
from matrix.provision.indexes import site_environment
from matrix.provision.overlays import uv

SECONDS: Final = 120.0  # s for a resolution; 1 - 10 s seen, most of it reading metadata
NO_ANSWER: Final = (
    "error sending request",
    "failed to fetch",
    "could not connect",
    "network",
    "dns error",
    "timed out",
)


@dataclass(frozen=True)
class SourceMetadata:
    """What a package that is source alone declares: its requirements as pip writes them."""

    name: str
    version: str
    requires: Sequence[str]


@dataclass(frozen=True)
class Resolution:
    """The answer of the resolver: the pins of all packages, or the problem. `reached` is False without an index."""

    pins: tuple[str, ...] = ()
    problem: str = ""
    reached: bool = True


def resolve(
    requirements: Sequence[str],
    python: str,
    sources: Sequence[SourceMetadata] = (),
    run: Runner = run,
    environ: Mapping[str, str] = os.environ,
) -> Resolution:
    """Return how uv resolves requirements for Linux and a minor of Python, with wheels alone."""
    environment = {**environ, **site_environment(environ), "UV_PYTHON_DOWNLOADS": "never"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "requirements.in").write_text("\n".join(requirements) + "\n")
        (folder / "uv.toml").write_text("\n".join(map(_table, sources)))
        options = ["--quiet", "--no-build", "--no-header", "--no-annotate", "--config-file", str(folder / "uv.toml")]
        options += ["--python-version", python, "--python-platform", "x86_64-manylinux_2_28"]
        result = run(
            [*uv(environment), "pip", "compile", *options, str(folder / "requirements.in")],
            environment=environment,
            seconds=SECONDS,
        )
    if result.code:
        reached = not any(text in result.complaint.lower() for text in NO_ANSWER)
        return Resolution(problem=result.complaint, reached=reached)
    return Resolution(tuple(line for line in result.out.splitlines() if "==" in line))


def _table(source: SourceMetadata) -> str:
    """Return the metadata of a package as uv's settings write it."""
    requires = json.dumps([*source.requires])
    return (
        f'[[dependency-metadata]]\nname = "{source.name}"\nversion = "{source.version}"\nrequires-dist = {requires}\n'
    )
