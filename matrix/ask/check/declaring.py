"""The stack and the jobs that files, images and a text declare."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from os.path import normpath
from pathlib import Path
from typing import TYPE_CHECKING, Final

from matrix.ask.check.files.declared import (
    COMMAND,
    Declared,
    Open,
    Statement,
    UnreadKind,
    UserCommand,
    not_read,
    total,
)
from matrix.ask.check.files.dockerfile import read_dockerfile
from matrix.ask.check.files.job_yaml import read_yaml
from matrix.ask.check.files.requirements import read_pipfile_lock, read_pyproject, read_requirements, read_toml_lock
from matrix.ask.check.files.shell import SHELLS, read_definition, read_script
from matrix.ask.check.training_job import UserJob, job_of, jobs_of
from matrix.ask.check.user_stack import UserStack, build, image_contents, parse_text
from matrix.ground.catalog.model import Catalog
from matrix.ground.catalog.regular_file import read_regular, within_limits
from matrix.ground.catalog.stack import Place, component_named
from matrix.ground.errors import MatrixError

if TYPE_CHECKING:  # not needed for files: 0.1 s
    from matrix.ask.check.job_site import JobSite
    from matrix.read.elf.load_check import LoadReport

FILE_S: Final = 20.0  # seconds of CPU time for a file with those that it names; the lock of a large monorepo takes 2
Reader = Callable[[str, str, Open], Declared]  # of a text, its path and what opens other files
KINDS: Final = (
    "requirements.txt, pip freeze, uv.lock, pylock.toml, poetry.lock, pdm.lock, Pipfile.lock, pyproject.toml, "
    "environment.yml, Dockerfile, Containerfile, Apptainer's definition file, a shell or sbatch script, YAML of a job, "
    "or settings of Megatron, NeMo or verl"
)
SUFFIXES: Final = (".txt", ".in", ".lock", ".toml", ".yml", ".yaml", ".sh", ".sbatch", ".slurm", ".def", "file")
# Distributions that contain the Python of Transformer Engine, and its compiled parts: the first one counts.
PARTS: Final = ("transformer-engine-torch", "transformer-engine-cu12", "transformer-engine-cu13")


def is_file(word: str) -> bool:
    """Return whether a word of the command line means a file and no stack."""
    try:
        exists = Path(word).exists()
    except (OSError, ValueError):  # a name of 1,000 characters, a null
        exists = False
    if exists or "=" in word or ":" in word.rpartition("/")[2]:
        return exists
    return word.lower().endswith(SUFFIXES) or word.startswith((".", "/"))


def read(paths: Iterable[str]) -> Declared:
    """Return what files declare; nothing of one that can't be read. Raises MatrixError where there is no file."""
    return total(map(_read, paths))


def _read(path: str) -> Declared:
    try:
        return read_file(Path(path))
    except MatrixError as error:
        if not Path(path).is_file():
            raise
        text = error.brief.removeprefix(f"{error.where}: ")
        return not_read(UnreadKind.FILE, text, Place(path), error.fix or "")


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
        r"(uv|poetry|pdm)\.lock|pylock(\.\w+)?\.toml": read_toml_lock,
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
    if low.endswith(".def") or re.search(r"^bootstrap[ \t]*:", text, re.MULTILINE | re.IGNORECASE):
        return read_definition
    if text.startswith("#!") or re.search(r"^#SBATCH\b", text, re.MULTILINE):
        return read_script
    if low.endswith((".txt", ".in")) or re.search(r"^[\w.-]+\s*==\s*\S+\s*$", text, re.MULTILINE):
        return read_requirements
    if re.search(r"^FROM\s+\S+", text, re.MULTILINE):
        return read_dockerfile
    raise MatrixError("not a file that declares a stack", where=where, expected=KINDS)


def _text(path: Path, where: str) -> str:
    content = read_regular(path)
    if b"\0" in content[:8192] and not content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise MatrixError("a binary file", where=where, expected=KINDS)
    return content.decode("utf-16" if content.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig", errors="replace")


def roots_of(files: Mapping[str, Declared]) -> list[str]:
    """Return the files, by path, that no other one includes; of those that include each other, the first."""
    order = list(files)

    def includes(path: str, other: str) -> bool:
        return path != other and str(Path(other).resolve()) in files[path].files

    def is_part(path: str, other: str) -> bool:
        return includes(other, path) and not (includes(path, other) and order.index(path) < order.index(other))

    return [path for path in order if not any(is_part(path, includer) for includer in order)]


@dataclass(frozen=True)
class CheckInput:
    """One stack to check and its jobs; `files` declare it, `host` is the machine where it is installed, if known,
    `loading` what of its compiled packages does not load."""

    stack: UserStack
    jobs: tuple[UserJob, ...] = ()
    files: tuple[str, ...] = ()
    host: JobSite | None = None
    loading: LoadReport | None = None


def inputs(catalog: Catalog, words: Sequence[str], *, as_one: bool = False) -> list[CheckInput]:
    """Return the stacks that files and versions name: one for each file that no other includes, or one of all files.

    Files that complete each other are one, too: a note names them.

    The versions replace those of each file. Raises MatrixError for a file that is missing and for an invalid version.
    """
    if not all(words):
        raise MatrixError(
            "an empty word", got='""', expected="a file or versions", fix="set the variable, or leave the word out"
        )
    paths = [word for word in words if is_file(word)]
    versions = " ".join(word for word in words if word not in paths)
    statements = parse_text(catalog, versions) if versions or not paths else []
    files = {path: _read(path) for path in paths}
    roots = roots_of(files)
    if (joined := _completed(files, roots)) or as_one or not files:
        every = total([*(stack for declared in files.values() for stack in declared.stacks), joined or Declared()])
        return [CheckInput(*declared_stack(catalog, every, statements), tuple(files))]
    stacks = ((path, stack) for path in roots for stack in files[path].stacks)
    return [CheckInput(*declared_stack(catalog, stack, statements), (path,)) for path, stack in stacks]


def _completed(files: Mapping[str, Declared], roots: Sequence[str]) -> Declared | None:
    """Return the note of files that complete each other, None for others.

    One names an image; the others state no image and no package that it installs in another version.
    """
    bases = [path for path in roots if files[path].images]
    if len(roots) < 2 or len(bases) != 1 or any(files[path].apart or files[path].complete for path in roots):
        return None
    installed = {pin.name: pin.value for pin in files[bases[0]].pins}
    pins = [pin for path in roots if path != bases[0] for pin in files[path].pins]
    if any(installed.get(pin.name, pin.value) != pin.value for pin in pins):
        return None
    names = " and ".join([bases[0], *(path for path in roots if path != bases[0])])
    return Declared(notes=(f"{names} complete each other, and are judged as one stack",))


def command_jobs(words: Sequence[str], environ: Mapping[str, str]) -> tuple[UserJob, ...]:
    """Return the jobs of a command; of a shell script, those that it starts."""
    names = [word for word in words if not word.startswith("-")]
    if names[1:] and Path(names[0]).name in SHELLS and Path(names[1]).is_file():
        return jobs_of(read(names[1:2]).commands)
    return (job_of(UserCommand(tuple(words), COMMAND, environ)),) if words else ()


def declared_stack(
    catalog: Catalog, declared: Declared, statements: Sequence[Statement] = ()
) -> tuple[UserStack, tuple[UserJob, ...]]:
    """Return the stack and the jobs; `statements` come last, as those of the user, and so replace those of files."""
    images = total(image_contents(catalog, image) for image in dict.fromkeys(declared.images))
    whole = any(pin.name == "transformer-engine" for pin in declared.pins)
    named = (
        replace(_left_open(pin, declared), name=component)
        for pin in declared.pins
        if (component := component_named(pin.name, catalog.packages)) and not (whole and pin.name in PARTS)
    )
    user = build(
        catalog,
        [*images.pins, *named, *statements],
        closed=declared.complete and not declared.images,
        notes=declared.notes,
        unread=(*declared.unread, *images.unread),
    )
    return user, jobs_of(declared.commands)


def _left_open(statement: Statement, declared: Declared) -> Statement:
    """Return a statement; a package that a file removes is open where an installation after it was not understood."""
    source = statement.place
    installs = (item.place for item in declared.unread if item.kind is UnreadKind.PACKAGE)
    is_open = any(install.path == source.path and install.line >= source.line for install in installs)
    return statement.left_open() if is_open else statement
