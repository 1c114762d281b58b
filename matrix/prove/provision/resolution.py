"""The site's index: whether requirements resolve with all that they require, and to which files (uv), and a package's
releases (pip).

Wheels alone count: nothing is built. Of a package that is source alone, the caller gives the requirements in its place.
"""

from __future__ import annotations

import os
import platform
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from matrix.ground.catalog.schema import toml_table
from matrix.ground.errors import MatrixError
from matrix.prove.provision.downloads import IndexFile
from matrix.prove.provision.indexes import pip_environment, site_environment
from matrix.prove.provision.overlays import uv
from matrix.read.commands import CommandResult, Runner, run

SECONDS: Final = 120.0  # s for a resolution; 1 - 10 s seen, most of it reading metadata
LINUX: Final = ("--python-platform", "x86_64-manylinux_2_28")
# In uv's errors where nothing is decided: no network, or a package that is source alone.
NO_ANSWER: Final = (
    "error sending request",
    "failed to fetch",
    "could not connect",
    "dns error",
    "timed out",
    "network connectivity is disabled",
    "building from source is disabled",
)


@dataclass(frozen=True)
class Resolution:
    """The answer of the resolver: the pins of all packages, or the problem.

    `decided` is False where it has no answer: no index is reached, or a package would have to be built for it.
    """

    pins: tuple[str, ...] = ()
    problem: str = ""
    decided: bool = True


def resolve(
    requirements: Sequence[str],
    python: str,
    run: Runner = run,
    environ: Mapping[str, str] = os.environ,
) -> Resolution:
    """Return how uv resolves requirements for Linux and a minor of Python, with wheels alone."""
    result = _compile(requirements, python, ["--no-build", *LINUX], run, environ)
    if result.code:
        decided = not any(text in result.complaint.lower() for text in NO_ANSWER)
        return Resolution(problem=result.complaint, decided=decided)
    return Resolution(tuple(line for line in result.out.splitlines() if "==" in line))


def _compile(
    requirements: Sequence[str], python: str, options: Sequence[str], run: Runner, environ: Mapping[str, str]
) -> CommandResult:
    """Return the result of `uv pip compile` for a minor of Python."""
    environment = {**environ, **site_environment(environ), "UV_PYTHON_DOWNLOADS": "never"}
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "requirements.in"
        path.write_text("\n".join(requirements) + "\n")
        # --directory: the current folder may hold uv settings of another project.
        command = [*uv(environment), "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--directory", name]
        command += ["--python-version", python, *options, str(path)]
        return run(command, environment=environment, seconds=SECONDS)


def listed_releases(
    package: str, python: str, run: Runner = run, environ: Mapping[str, str] = os.environ
) -> tuple[str, ...]:
    """Return the final releases of a package with a wheel for a minor of Python, newest first; () without an answer.

    uv lists none; pip, in an environment that uv makes once, does so in 1 s. It is given uv's indexes.
    """
    environment = {**environ, **pip_environment(environ)}
    options = ["--python-version", python, "--only-binary", ":all:"]
    command = [*uv(environment), "tool", "run", "pip", "index", "versions", package, *options]
    result = run(command, environment=environment, seconds=SECONDS)
    listed = re.search(r"(?m)^Available versions: (.+)$", result.out)
    return tuple(listed[1].split(", ")) if listed and result.code == 0 else ()


def index_files(
    requirements: Sequence[str],
    python: str,
    options: Sequence[str] = (),
    run: Runner = run,
    environ: Mapping[str, str] = os.environ,
) -> tuple[IndexFile, ...]:
    """Return the files of the site's index to which requirements resolve; size 0 where the index states none.

    Options of uv: "--no-deps" for these files alone, "--no-binary NAME" for a source distribution. Raises MatrixError.
    """
    target = ["--python-platform", f"{platform.machine()}-manylinux_2_28"]
    result = _compile(requirements, python, ["--format", "pylock.toml", *target, *options], run, environ)
    if result.code:
        raise MatrixError(
            "the index has no such files",
            where=", ".join(requirements),
            got=result.complaint,
            fix="check the versions and --python, and that the package index is reachable",
        )
    files = []
    for package in toml_table(result.out, "uv's lock").get("packages", ()):
        entry = (package.get("wheels") or [package.get("sdist") or package.get("archive")])[0]
        url = entry.get("url") or Path(entry["path"]).absolute().as_uri()
        name = unquote(urlsplit(url).path.rpartition("/")[2])
        files.append(IndexFile(name, url, entry.get("size", 0), entry["hashes"]["sha256"]))
    return tuple(files)
