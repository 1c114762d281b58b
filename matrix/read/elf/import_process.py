"""The objects in a Python process after imports: what the import of a package opens, by the rows of linking.toml."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path

from matrix.ground.catalog.regular_file import UnreadableError, read_regular_text
from matrix.ground.catalog.versions import NONE
from matrix.read.elf.dynamic_linker import LinkProblem, ProblemKind, Process
from matrix.read.elf.load_facts import OpenStep, PackageImport, ProvidedLibrary
from matrix.read.elf.python_site import PythonSite
from matrix.read.machine.installed import torch_cuda


def started(python: PythonSite, provided: Sequence[ProvidedLibrary] = ()) -> Process:
    """Return the process of an interpreter that has imported nothing; `provided` are libraries of the driver."""
    process = Process(python.site, provided)
    process.start(python.program)
    return process


def after_import(process: Process, python: PythonSite, row: PackageImport) -> tuple[Process, tuple[LinkProblem, ...]]:
    """Return a process after the import of a package, with what does not load; it has what was opened until then."""
    process, problems = process.copy(), list[LinkProblem]()
    failed = opened = False
    for step in _listed(row.step, python):
        if (
            (step.when == "failed" and not failed)
            or (step.when == "nothing" and opened)
            or _exists(step, python, process)
        ):
            continue
        files = list(_files(step, python, process))
        opened = False
        for path in files:
            result = process.open(path, visible=step.visible, name="" if "/" in str(path) else str(path))
            failed, opened = failed or bool(result), opened or not result
            problems += result if step.needed else ()
        if step.needed and not files:
            name = Path(step.files[-1]).name.partition("*")[0]
            problems.append(LinkProblem(ProblemKind.LIBRARY, name, Path(row.package)))
    return process, tuple(problems)


def _listed(steps: Iterable[OpenStep], python: PythonSite) -> Iterator[OpenStep]:
    """Yield the steps; one whose files a Python file lists becomes a step for each of its rows."""
    cuda = cuda_of(python).partition(".")[0]
    for step in steps:
        if not step.pattern:
            yield step
            continue
        for folder in python.folders:
            try:
                text = read_regular_text(folder / step.listed)
            except UnreadableError:
                continue
            for match in re.finditer(step.pattern, text):
                values = {**match.groupdict(), "cuda": cuda}
                yield replace(step, files=tuple(file.format_map(values) for file in step.files), pattern=None)
            break


def cuda_of(python: PythonSite) -> str:
    """Return the CUDA that torch was built for ("12.4"), "" for a build without, or without torch."""
    cuda = torch_cuda(*map(str, python.folders))
    return cuda if cuda and cuda != NONE else ""


def _exists(step: OpenStep, python: PythonSite, process: Process) -> bool:
    return any(True for pattern in step.unless for _ in _matches(pattern, python, process))


def _files(step: OpenStep, python: PythonSite, process: Process) -> Iterator[Path]:
    """Yield the files that a step opens: those of the first pattern that has any."""
    for pattern in step.files:
        files = list(_matches(pattern, python, process))
        if files:
            yield from files if step.every else files[-1:]
            return


def _matches(pattern: str, python: PythonSite, process: Process) -> list[Path]:
    """Return the files of a pattern, sorted by name; stubs of libraries are none."""
    if pattern.startswith("cache:"):
        cache = process.site.cache
        names = sorted(name for name in cache if fnmatch(name, pattern.removeprefix("cache:")))
        return [process.site.inside(cache[name]) for name in names]
    if pattern.startswith("@site/"):
        paths = (_glob(folder, pattern.removeprefix("@site/")) for folder in python.folders)
        return next(filter(None, paths), [])
    if pattern.startswith("$"):
        variable, _, rest = pattern[1:].partition("/")
        folder = python.environ.get(variable, "")
        return _glob(process.site.inside(folder), rest) if folder else []
    if pattern.startswith("/"):
        top, _, rest = pattern.partition("/**/")
        return _glob(process.site.inside(top), f"**/{rest}")
    return [Path(pattern)] if any(path.is_file() for path in process.candidates(pattern, None)) else []


def _glob(folder: Path, pattern: str) -> list[Path]:
    return sorted((path for path in folder.glob(pattern) if "stub" not in str(path)), key=lambda path: path.name)
