"""The stack of this environment, read from files: no package of it is imported."""

from __future__ import annotations

import importlib.metadata
import itertools
import os
import platform
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from matrix.catalog.machine import PythonEnvironment
from matrix.catalog.model import Catalog
from matrix.catalog.place import Place
from matrix.catalog.regular_file import UnreadableError, read_regular_text
from matrix.catalog.stack import ABSENT, DRIVER, GPUS, MCORE, PYTHON, SM, TE, TORCH, component_named, components
from matrix.catalog.versions import is_version
from matrix.check import probe
from matrix.check.declaring import CheckInput, command_jobs
from matrix.check.files.declared import Statement, Unread, UnreadKind
from matrix.check.job_site import JobSite
from matrix.check.user_stack import UserStack, build
from matrix.planning.host_cases import LABEL

INSTALLED: Final = Place("installed")
# Distributions by axis; the first that is installed counts.
DISTRIBUTIONS: Final = {
    TORCH: ("torch",),
    MCORE: ("megatron-core",),
    TE: ("transformer-engine", "transformer-engine-torch", "transformer-engine-cu13", "transformer-engine-cu12"),
}
# Of a clone on the import path, which has no metadata: MAJOR = 0, PRE_RELEASE = 'rc0'.
PACKAGE_INFO: Final = "megatron/core/package_info.py"
_PART: Final = re.compile(r"^(MAJOR|MINOR|PATCH|PRE_RELEASE) = ['\"]?([\w.]*)['\"]?$", re.MULTILINE)


def statements(python: PythonEnvironment, folders: Iterable[str], further: Iterable[str] = ()) -> list[Statement]:
    """Return the versions of an interpreter's environment; a package that is not installed is stated as absent.

    `folders` are searched for a clone of Megatron-LM before the installed packages, as Python does. `further` are
    packages besides those of components.toml.
    """
    path = Place(str(python.path))
    installed = {PYTHON: Statement(PYTHON, python.python, path)} if python.python else {}
    for package, version in sorted(python.packages.items()):  # transformer-engine before transformer-engine-cu12
        if component := component_named(package, further):
            installed.setdefault(component, Statement(component, version, INSTALLED))
    absent = {name: Statement(name, ABSENT, Place("not installed")) for name in DISTRIBUTIONS if name not in installed}
    clone = {clone.name: clone for clone in itertools.islice(_clones(folders), 1)}
    return list({**installed, **absent, **clone}.values())


def here(catalog: Catalog, site: JobSite, environ: Mapping[str, str]) -> UserStack:
    """Return the stack of this environment and machine."""
    problems, interpreter = site.python.problems, Place(str(site.python.path))
    unread = tuple(
        Unread(UnreadKind.PACKAGE, problem, interpreter, "check another interpreter") for problem in problems
    )
    machine = {DRIVER: site.machine.driver, SM: site.machine.sm, GPUS: len(site.machine.gpus or ())}
    return build(
        catalog,
        [
            *statements(site.python, import_path(environ, Path.cwd()), catalog.packages),
            *(Statement(name, str(value), Place("this machine")) for name, value in machine.items() if value),
        ],
        closed=bool(site.python.packages) or not problems,
        label=environ.get(LABEL, ""),
        notes=problems if site.python.packages else (),
        unread=() if site.python.packages else unread,
    )


def environment_input(
    catalog: Catalog, path: str | None, command: Sequence[str], variables: Iterable[str]
) -> CheckInput:
    """Return the stack of this environment, or of the interpreter `path`, and this machine, with a command's jobs.

    `variables` are those that preflights read. Raises MatrixError for an interpreter that can't be started.
    """
    python = probe.python_of(path) if path else own_python(catalog.packages)
    host = probe.job_site(os.environ, variables, python)
    return CheckInput(here(catalog, host, os.environ), command_jobs(command, os.environ), host=host)


def own_python(further: Iterable[str]) -> PythonEnvironment:
    """Return this interpreter and the `further` packages, from metadata alone: torch is not imported."""
    packages = {}
    listed = [name for name, component in components().items() if component.distribution or component.follows]
    aliases = [(name, *components()[name].aliases) for name in listed if name not in DISTRIBUTIONS]
    for names in (*DISTRIBUTIONS.values(), *aliases, *((name,) for name in further)):
        if version := next(_installed(names), None):
            packages[names[0]] = version
    path = Path(sys.executable)
    return PythonEnvironment(platform.python_version(), packages, path=path, torch_cuda=torch_cuda())


def import_path(environ: Mapping[str, str], folder: Path) -> list[str]:
    """Return the folders that a script started in `folder` imports from, before the installed packages."""
    return [str(folder), *(entry for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry)]


def torch_cuda() -> str | None:
    """Return the CUDA that torch is built for ("12.4"), "none" for a build without, None where torch does not say."""
    try:
        path = importlib.metadata.distribution("torch").locate_file("torch/version.py")
        text = read_regular_text(Path(str(path)))
    except (importlib.metadata.PackageNotFoundError, UnreadableError):
        return None
    match = re.search(r"^cuda\s*(?::[^=]+)?=\s*(?:['\"]([\d.]+)['\"]|None)", text, re.MULTILINE)
    return (match[1] or "none") if match else None


def _installed(names: Iterable[str]) -> Iterator[str]:
    for name in names:
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if is_version(version):  # of a damaged distribution it is None
            yield version


def _clones(folders: Iterable[str]) -> Iterator[Statement]:
    for folder in folders:
        path = Path(folder) / PACKAGE_INFO
        try:
            parts = dict(_PART.findall(read_regular_text(path)))
        except UnreadableError:
            continue
        if {"MAJOR", "MINOR", "PATCH"} <= parts.keys():
            version = f"{parts['MAJOR']}.{parts['MINOR']}.{parts['PATCH']}{parts.get('PRE_RELEASE', '')}"
            if is_version(version):
                yield Statement(MCORE, version, Place(str(path)))
