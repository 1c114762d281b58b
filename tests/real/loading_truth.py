"""Compare what `megatrix check --loadable` predicts of shared objects with what the dynamic linker does.

    python -m tests.real.loading_truth PYTHON...     all compiled files of environments, before and after import torch

Each file is opened by ctypes.CDLL in a process of its own, a fork of that Python. Disagreements are printed in full.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from matrix.read.elf.dynamic_linker import LinkProblem
from matrix.read.elf.load_facts import link_table
from matrix.read.elf.python_site import CompiledFile, PythonSite, after_import, site_of, started

SECONDS = 1200
# In the environment's own Python: a fork for each file, so that nothing that one loads is there for the next.
OPENER = """
import ctypes, json, os, sys
imported, paths = sys.argv[1], json.loads(sys.stdin.read())
if imported:
    __import__(imported)
answers = []
for path in paths:
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            ctypes.CDLL(path)
            text = ""
        except OSError as error:
            text = str(error) or "error"
        os.write(writer, text.encode()[:4000])
        os._exit(0)
    os.close(writer)
    text = b""
    while part := os.read(reader, 65536):
        text += part
    os.close(reader)
    status = os.waitpid(child, 0)[1]
    answers.append(text.decode() if status == 0 else f"ended with status {status}")
print(json.dumps(answers))
"""


def loaded(python: str, imported: str, paths: Sequence[Path]) -> list[str]:
    """Return what the dynamic linker states of each file, "" where it loads."""
    result = subprocess.run(
        [python, "-c", OPENER, imported],
        input=json.dumps([str(path) for path in paths]), capture_output=True, text=True, timeout=SECONDS, check=True,
        cwd="/", env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    answers: list[str] = json.loads(result.stdout.splitlines()[-1])
    return answers


def predicted(site: PythonSite, imported: str, paths: Sequence[Path]) -> list[tuple[LinkProblem, ...]]:
    """Return what is predicted of each file, () where it loads."""
    process = started(site)
    for row in link_table().importing:
        if row.package == imported:
            process, problems = after_import(process, site, row)
            assert not problems, problems
    return [process.copy().open(path) for path in paths]


def agree(problems: Sequence[LinkProblem], text: str) -> bool:
    """Return whether a prediction names what the linker's message names."""
    if not problems or not text:
        return not problems and not text
    names = [name for problem in problems for name in (problem.name, *problem.names)]
    return any(name in text for name in names) or problems[0].kind.value == "file"


def compare(python: str, imported: str, files: Sequence[tuple[str, CompiledFile]]) -> tuple[int, int, set[str]]:
    """Print the disagreements; return how many files were opened, how many did not load, and their packages."""
    paths = [file.path for _, file in files]
    truth, guesses = loaded(python, imported, paths), predicted(site_of(Path(python), os.environ), imported, paths)
    wrong = 0
    for (package, file), text, problems in zip(files, truth, guesses, strict=True):
        if not agree(problems, text):
            wrong += 1
            shown = "; ".join(f"{problem.kind.value} {problem.name} by {problem.by.name}" for problem in problems)
            print(f"DIFFERS {package} {file.name} after {imported or 'nothing'}\n  linker:    {text or 'loads'}")
            print(f"  predicted: {shown or 'loads'}")
    failing = sum(bool(text) for text in truth)
    count = len({package for package, _ in files})
    print(f"{python} after {imported or 'nothing'}: {len(files)} files of {count} packages, {failing} do not load, "
          f"{wrong} differ")  # fmt: skip
    return len(files), wrong, {package for package, _ in files}


def main(pythons: Sequence[str]) -> int:
    """Compare every environment; return 1 where something differs."""
    total, wrong, packages = 0, 0, set[str]()
    for python in pythons:
        site = site_of(Path(python), os.environ)
        files = [
            (f"{package.name or file.name} {package.version}".strip(), file)
            for package in site.packages
            for file in package.files
            if file.path.is_file() and re.search(r"\.so(\.\d+)*$", file.path.name)
        ]
        for imported in ("", *(["torch"] if "torch" in site.versions else [])):
            count, differing, names = compare(python, imported, files)
            total, wrong, packages = total + count, wrong + differing, packages | names
    print(f"{total} openings of files of {len(packages)} packages: {wrong} differ")
    return int(bool(wrong))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
