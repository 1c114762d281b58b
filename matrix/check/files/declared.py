"""What a file declares about a stack: values, each with the place that states it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from packaging.utils import canonicalize_name

from matrix.catalog.place import Place

# Returns the path and the text of another file that a file names, relative to that file; None where it is missing.
Open = Callable[[str], "tuple[str, str] | None"]


COMMAND: Final = Place("the command")  # of what the user starts with `check -- COMMAND`


@dataclass(frozen=True)
class Pin:
    """A distribution that a file declares.

    `name` is canonical. `version` is exact, or "" where the file leaves it open; `text` is the declaration itself.
    """

    name: str
    version: str
    text: str
    place: Place


@dataclass(frozen=True)
class ImageUse:
    """An image that a file starts from."""

    reference: str
    place: Place


@dataclass(frozen=True)
class UserCommand:
    """A command that a file starts, with the environment variables that the file sets before it."""

    words: tuple[str, ...]
    place: Place
    environ: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Declared:
    """All that one or several files declare. `notes` name what could not be read, each with its place.

    `complete`: a lock file is among them, which names every package of the environment.
    """

    pins: tuple[Pin, ...] = ()
    images: tuple[ImageUse, ...] = ()
    commands: tuple[UserCommand, ...] = ()
    notes: tuple[str, ...] = ()
    complete: bool = False

    def __add__(self, other: Declared) -> Declared:
        return total((self, other))


def total(parts: Iterable[Declared]) -> Declared:
    """Return the declarations of all parts, in order."""
    every = list(parts)
    return Declared(
        tuple(pin for one in every for pin in one.pins),
        tuple(image for one in every for image in one.images),
        tuple(command for one in every for command in one.commands),
        tuple(note for one in every for note in one.notes),
        any(one.complete for one in every),
    )


def pin(name: str, version: str, place: Place, text: str = "") -> Pin:
    """Return a pin with a canonical name."""
    return Pin(canonicalize_name(name), version, text or (f"{name}=={version}" if version else name), place)
