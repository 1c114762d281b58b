"""Read any file that declares a stack, by its name and its first lines."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from os.path import normpath
from pathlib import Path
from typing import Final

from matrix.ask.check.files.declared import Declared, Open
from matrix.ask.check.files.dockerfile import read_dockerfile
from matrix.ask.check.files.job_yaml import read_yaml
from matrix.ask.check.files.requirements import read_pipfile_lock, read_pyproject, read_requirements, read_toml_lock
from matrix.ask.check.files.shell import read_script
from matrix.ground.catalog.regular_file import read_regular, within_limits
from matrix.ground.errors import MatrixError

FILE_S: Final = 20.0  # seconds of CPU time for a file with those that it names; the lock of a large monorepo takes 2
Reader = Callable[[str, str, Open], Declared]
KINDS: Final = (
    "requirements.txt, pip freeze, uv.lock, pylock.toml, poetry.lock, Pipfile.lock, pyproject.toml, environment.yml, "
    "Dockerfile, Containerfile, a shell or sbatch script, YAML of a job, or settings of Megatron, NeMo or verl"
)


def read_file(path: Path) -> Declared:
    """Return what a file declares. Raises MatrixError if it can't be read or is of no known kind."""
    name = str(path)
    text = _text(path, name)
    texts: dict[Path, str] = {}  # each file is read once

    def open_file(other: str) -> tuple[str, str] | None:
        file = Path(normpath(path.parent / other))
        try:
            if file not in texts and file.is_file():
                texts[file] = _text(file, str(file))
        except (MatrixError, ValueError, OSError):  # too large, binary, or no name of a file
            return None
        return (str(file), texts[file]) if file in texts else None

    with within_limits(name, FILE_S):
        declared = reader_of(path.name, text, name)(text, name, open_file)
    unread = {(item.kind, item.text): item for item in reversed(declared.unread)}  # each once, at its first place
    files = (str(file.resolve()) for file in (path, *texts))
    return replace(declared, unread=tuple(unread.values())[::-1], files=tuple(files))


def reader_of(name: str, text: str, where: str) -> Reader:
    """Return the reader for a file by its name, then by its content. Raises MatrixError for an unknown kind."""
    low = name.lower()
    readers: dict[str, Reader] = {
        r"(uv|poetry)\.lock|pylock(\.\w+)?\.toml": read_toml_lock,
        r"pipfile\.lock": read_pipfile_lock,
        r"pyproject\.toml": read_pyproject,
        r"(.*\.)?(docker|container)file(\..*)?": read_dockerfile,
        r".*\.(sh|bash|sbatch|slurm|sub|job)": read_script,
    }
    for pattern, reader in readers.items():
        if re.fullmatch(pattern, low):
            return reader
    if low.endswith((".yml", ".yaml")):
        return read_yaml
    if text.startswith("#!") or re.search(r"^#SBATCH\b", text, re.MULTILINE):
        return read_script
    if low.endswith((".txt", ".in")) or re.search(r"^[\w.-]+\s*==\s*\S+\s*$", text, re.MULTILINE):
        return read_requirements
    if re.search(r"^FROM\s+\S+", text, re.MULTILINE):
        return read_dockerfile
    raise MatrixError("not a file that declares a stack", got=where, expected=KINDS)


def _text(path: Path, where: str) -> str:
    content = read_regular(path)
    if b"\0" in content[:8192] and not content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise MatrixError("a binary file", got=where, expected=KINDS)
    return content.decode("utf-16" if content.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig", errors="replace")
