"""The stack and the jobs that files, images and a text declare."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from matrix.catalog.model import Catalog
from matrix.catalog.stack import component_named
from matrix.check.files.declared import Declared, Statement, total
from matrix.check.files.shell import SHELLS
from matrix.check.training_job import UserJob, jobs_of
from matrix.check.user_stack import UserStack, build, image_contents

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
    images = total(image_contents(catalog, image) for image in dict.fromkeys(declared.images))
    whole = any(pin.name == "transformer-engine" for pin in declared.pins)
    named = (
        replace(pin, name=component)
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
