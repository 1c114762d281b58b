"""The stack and the jobs that files, images and a text declare."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from packaging.requirements import InvalidRequirement, Requirement

from matrix.catalog.model import Catalog
from matrix.catalog.stack import UNKNOWN, component_named
from matrix.catalog.versions import is_version
from matrix.check import user_stack
from matrix.check.files.declared import Declared, Pin, total
from matrix.check.files.shell import SHELLS
from matrix.check.training_job import UserJob, jobs_of
from matrix.check.user_stack import Statement, UserStack

SUFFIXES: Final = (".txt", ".in", ".lock", ".toml", ".yml", ".yaml", ".sh", ".sbatch", ".slurm", "file")
# Distributions that contain the Python of Transformer Engine, and its compiled parts: the first one counts.
PARTS: Final = ("transformer-engine-torch", "transformer-engine-cu12", "transformer-engine-cu13")


def is_file(word: str) -> bool:
    """Return whether a word of the command line means a file and no stack."""
    try:
        there = Path(word).exists()
    except (OSError, ValueError):  # a name of 1,000 characters, a null
        there = False
    if there or "=" in word or ":" in word.rpartition("/")[2]:
        return there
    return word.lower().endswith(SUFFIXES) or word.startswith((".", "/"))


def read(paths: Iterable[str]) -> Declared:
    """Return what files declare. Raises MatrixError for one that can't be read."""
    from matrix.check.files.read import read_file

    return total(read_file(Path(path)) for path in paths)


def script_of(words: Sequence[str]) -> Declared | None:
    """Return what the shell script declares that a command runs, None for any other command."""
    names = [word for word in words if not word.startswith("-")]
    if not names or Path(names[0]).name not in SHELLS or not names[1:] or not Path(names[1]).is_file():
        return None
    return read(names[1:2])


def declared_stack(
    catalog: Catalog, declared: Declared, statements: Sequence[Statement] = ()
) -> tuple[UserStack, tuple[UserJob, ...]]:
    """Return the stack and the jobs; `statements` come last, as those of the user, and so replace those of files."""
    found, notes = [], list(declared.notes)
    for image in dict.fromkeys(declared.images):
        made, note = user_stack.image_statements(catalog, image.reference, image.place)
        found += made
        notes += [note] if note else []
    whole = any(one.name == "transformer-engine" for one in declared.pins)
    for one in declared.pins:
        axis = component_named(one.name, catalog.packages)
        if axis and not (whole and one.name in PARTS):
            found.append(_statement(axis, one))
    made_stack = user_stack.build(
        catalog, [*found, *statements], closed=declared.complete and not declared.images, notes=notes
    )
    return made_stack, jobs_of(declared.commands)


def _statement(axis: str, one: Pin) -> Statement:
    if one.version:
        return Statement(axis, one.version if is_version(one.version) else UNKNOWN, one.place)
    try:
        return Statement(axis, UNKNOWN, one.place, str(Requirement(one.text).specifier))
    except InvalidRequirement:
        return Statement(axis, UNKNOWN, one.place)
