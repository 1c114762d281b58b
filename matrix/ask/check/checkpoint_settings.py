"""Which release wrote a checkpoint, and which can read it, from its files. No pickle is loaded: opcodes are listed."""

from __future__ import annotations

import json
import os
import pickletools
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Final

from matrix.ground.catalog.codec import decode
from matrix.ground.catalog.loading import FACTS
from matrix.ground.catalog.regular_file import open_regular, read_regular, read_regular_text
from matrix.ground.catalog.schema import read_toml
from matrix.ground.catalog.versions import Range
from matrix.ground.errors import MatrixError

CONFIG: Final = "metadata.json"
METADATA: Final = ".metadata"
LATEST: Final = "latest_checkpointed_iteration.txt"
BACKEND: Final = "torch_dist"
# Bytes read of a pickle: the class of its object is at the start, and that of a large model has hundreds of megabytes.
START: Final = 2**16
LARGEST: Final = 2**20  # bytes of metadata.json; it has 100


@dataclass(frozen=True)
class Mark:
    """A mark of releases: a file that is `present` or `absent`, or a class that the metadata `names`."""

    wrote: Range
    reads: Range
    reason: str
    present: str = ""
    absent: str = ""
    names: str = ""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint. `backend` is that of its metadata.json, "torch" for a legacy one; `mark` None: no mark fits."""

    folder: str
    backend: str
    mark: Mark | None = None

    def __str__(self) -> str:
        if self.mark is None:
            return f"{self.folder}: format {self.backend}; its files do not state which release wrote it"
        wrote, reads = self.mark.wrote.text, self.mark.reads.text
        return (
            f"{self.folder}: format {self.backend}, written by megatron-core {wrote}, readable by {reads} "
            f"({self.mark.reason})"
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        mark = self.mark
        texts = (mark.wrote.text, mark.reads.text, mark.reason) if mark else ("", "", "")
        return {
            "folder": self.folder,
            "backend": self.backend,
            **dict(zip(("wrote", "reads", "reason"), texts, strict=True)),
        }


@dataclass(frozen=True)
class _Marks:
    mark: tuple[Mark, ...]


def read_checkpoint(folder: Path, facts: Path = FACTS / "checkpoints.toml") -> Checkpoint:
    """Return the checkpoint in a folder, or its latest iteration. Raises MatrixError where there is none."""
    place = _iteration(folder)
    if (place / CONFIG).is_file():
        backend = _backend(place / CONFIG)
        marks = decode(_Marks, read_toml(facts), str(facts)).mark if backend == BACKEND else ()
        names = set(class_names(_start(place / METADATA)))
        found = next((one for one in marks if _fits(one, place, names)), None)
        return Checkpoint(str(place), backend, found)
    if any(place.glob("mp_rank_*/*.pt")):
        return Checkpoint(str(place), "torch")
    raise MatrixError(
        "not a checkpoint",
        where=str(folder),
        expected=f"{CONFIG}, {LATEST} or mp_rank_*",
        fix="name the folder of --save, or one of its iter_*",
    )


def class_names(pickled: bytes) -> Iterator[str]:
    """Yield the names of the globals in the start of a pickle, without loading it."""
    strings: list[str] = []
    try:
        for opcode, argument, _ in pickletools.genops(BytesIO(pickled)):
            if opcode.name == "GLOBAL":
                yield str(argument).rpartition(" ")[2]
            elif opcode.name == "STACK_GLOBAL" and strings:
                yield strings[-1]
            elif isinstance(argument, str):
                strings.append(argument)
    except ValueError:  # damaged or cut: 60,000 mutated pickles raised nothing else
        return


def _fits(mark: Mark, place: Path, names: set[str]) -> bool:
    if mark.absent:
        return not (place / mark.absent).exists()
    return (place / mark.present).exists() if mark.present else mark.names in names


def _iteration(folder: Path) -> Path:
    if not os.path.lexists(folder / LATEST):
        return folder
    number = read_regular_text(folder / LATEST, largest=LARGEST).strip()
    return folder / (f"iter_{int(number):07d}" if number.isdecimal() and len(number) < 16 else "release")


def _backend(path: Path) -> str:
    try:
        content = json.loads(read_regular(path, largest=LARGEST))
    except (ValueError, RecursionError) as error:
        raise MatrixError("not the metadata of a checkpoint", where=str(path), got=error) from None
    found = content.get("sharded_backend") if isinstance(content, dict) else None
    if not isinstance(found, str):
        raise MatrixError("not the metadata of a checkpoint", where=str(path), expected="a text sharded_backend")
    return found


def _start(path: Path) -> bytes:
    if not os.path.lexists(path):
        return b""
    with open_regular(path, what="the metadata of this checkpoint can't be read") as file:
        return file.read(START)
