"""What a file declares about a stack: values, each with the place that states it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import lru_cache
from typing import Any, Final

from packaging.utils import canonicalize_name

from matrix.ground.catalog.stack import ABSENT, UNKNOWN, Place, Value
from matrix.ground.catalog.versions import is_version
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.text import mask

# Returns the path and the text of another file that a file names, relative to that file; None where it is missing.
Open = Callable[[str], "tuple[str, str] | None"]


LARGEST: Final = 2**20  # characters of a script, Dockerfile or YAML: 10 s to read. Real ones have 100 KB at most
MOST: Final = 5_000  # commands of a script, instructions of a Dockerfile; real ones have hundreds
REMOVED: Final = "===removed"  # limits that no version fits: an image's own is gone, and what came is not known
NEWEST: Final = "===newest"  # limits that no version fits: an upgrade takes the newest release of its day
COMMAND: Final = Place("the command")  # of what the user starts with `check -- COMMAND`


@dataclass(frozen=True)
class Statement:
    """What a source states of one component: its value, UNKNOWN where it states only `limits` (a specifier set).

    `name` is that of the component; of what a file declares, the canonical name of the distribution. `perhaps`: a
    condition that nothing in the file decides is before it.
    """

    name: str
    value: Value
    place: Place
    limits: str = ""
    perhaps: bool = False

    @property
    def version(self) -> str:
        """The exact version, "" without one."""
        return self.value if isinstance(self.value, str) else ""

    def upgraded(self) -> Statement:
        """Return the statement of an installer that takes the newest version, whichever is installed."""
        return self if self.version else replace(self, limits=",".join(filter(None, (self.limits, NEWEST))))

    def either(self, other: Value) -> Statement:
        """Return that one of two versions is installed. Its limits are no specifier set: they exclude no version."""
        return replace(self, value=UNKNOWN, limits=f"{other} or {self.value}")

    def left_open(self) -> Statement:
        """Return the statement; of a removed package, that what is installed in its place is not known."""
        return replace(self, value=UNKNOWN, limits=REMOVED) if self.value is ABSENT else self


class UnreadKind(str, Enum):
    """What kind of thing an input names that was not read or is not known."""

    FILE = "file"
    IMAGE = "image"
    PACKAGE = "package"
    VERSION = "version"
    YAML = "kind of YAML"


FIXES: Final = {
    UnreadKind.FILE: "add the file, or name what it states, such as torch=2.9.1",
    UnreadKind.IMAGE: "name what it contains, such as torch=2.9.1 te=2.9.0, or the image that it is built from",
    UnreadKind.PACKAGE: "state its name and version, such as torch==2.9.1",
    UnreadKind.VERSION: "name a version that is known",
    UnreadKind.YAML: "name what it states, such as torch=2.9.1, or check the file that it is made from",
}


@dataclass(frozen=True)
class Unread:
    """Something that an input names and that was not read or is not known. `fix` is what to do about it."""

    kind: UnreadKind
    text: str
    place: Place
    fix: str = ""

    def __str__(self) -> str:
        """Return the text with its place."""
        return f"{self.place}: {self.text}"

    @property
    def remedy(self) -> str:
        """What to do about it: `fix`, else what helps for the kind."""
        return self.fix or FIXES[self.kind]

    def to_json(self) -> dict[str, str]:
        """Return plain JSON values."""
        return {"kind": self.kind.value, "text": self.text, "source": str(self.place), "fix": self.remedy}


@dataclass(frozen=True)
class ImageUse:
    """An image that a file starts from; `perhaps` as in Statement."""

    reference: str
    place: Place
    perhaps: bool = False


@dataclass(frozen=True)
class UserCommand:
    """A command that a file starts, with the environment variables that the file sets before it.

    `perhaps` are the words that a branch adds which may not be taken.
    """

    words: tuple[str, ...]
    place: Place
    environ: Mapping[str, str] = field(default_factory=dict)
    perhaps: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Declared:
    """All that one or several files declare. `unread` is what they name besides, and what could not be read.

    `complete`: a lock file is among them, which names every package of the environment. `notes` are remarks that
    leave nothing open, each with its place. `files` are the paths of all files that were read. `apart` are further
    stacks: those of containers with other images.
    """

    pins: tuple[Statement, ...] = ()
    images: tuple[ImageUse, ...] = ()
    commands: tuple[UserCommand, ...] = ()
    notes: tuple[str, ...] = ()
    complete: bool = False
    unread: tuple[Unread, ...] = ()
    files: tuple[str, ...] = ()
    apart: tuple[Declared, ...] = ()

    @property
    def stacks(self) -> tuple[Declared, ...]:
        """Return the declarations of each stack."""
        return (replace(self, apart=()), *self.apart)

    def __add__(self, other: Declared) -> Declared:
        return total((self, other))


def require_at_most(most: int, size: int, units: str, where: str) -> None:
    """Raise MatrixError where a file has more than `most` units of something: reading it would take minutes."""
    if size > most:
        raise MatrixError(
            f"too many {units}",
            where=where,
            got=f"{size:,} or more",
            expected=f"at most {most:,}",
            fix="name a shorter file, with the lines that install packages or start the training",
        )


def total(parts: Iterable[Declared]) -> Declared:
    """Return the declarations of all parts, in order."""
    declared = list(parts)
    return Declared(
        tuple(pin for part in declared for pin in part.pins),
        tuple(image for part in declared for image in part.images),
        tuple(command for part in declared for command in part.commands),
        tuple(note for part in declared for note in part.notes),
        any(part.complete for part in declared),
        tuple(unread for part in declared for unread in part.unread),
        tuple(file for part in declared for file in part.files),
        tuple(stack for part in declared for stack in part.apart),
    )


def pin(name: str, version: str, place: Place, limits: str = "") -> Statement:
    """Return the statement of a distribution, with its canonical name; a `version` that is none leaves it open."""
    return Statement(canonicalize_name(name), version if is_version(version) else UNKNOWN, place, limits)


def not_read(kind: UnreadKind, text: str, place: Place, fix: str = "") -> Declared:
    """Return the declaration of something that was not read or is not known."""
    return Declared(unread=(Unread(kind, mask(text), place, fix),))


DEEPEST: Final = 100  # nested tables and lists: the C loader overflows the stack. Those of NeMo have 8
TAGS: Final = frozenset(f"tag:yaml.org,2002:{name}" for name in ("bool", "null", "merge"))


class Text(str):
    """A text of a YAML document; `line` is that of its first character, counted from 1."""

    line: int = 0


def line_of(value: Any) -> int:
    """Return the line of a text of a document, 0 for any other value."""
    return value.line if isinstance(value, Text) else 0


def load_yaml(text: str, where: str, first_line: int = 1) -> list[Any]:
    """Return the documents of a YAML text, which starts at a line of a file.

    Raises MatrixError; tags that name Python objects are refused.
    """
    import yaml  # 10 ms: most files are no YAML

    try:
        depth = 0
        for event in yaml.parse(str(text), _loader(first_line)):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEEPEST:
                raise ValueError(f"nested more than {DEEPEST} levels deep")
        return [document for document in yaml.load_all(str(text), _loader(first_line)) if document is not None]
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        line = (
            f" (line {(error.problem_mark.line if error.problem_mark else 0) + first_line})"
            if isinstance(error, yaml.MarkedYAMLError)
            else ""
        )
        problem = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise MatrixError("not YAML", where=where, got=problem + line) from error


@lru_cache(maxsize=64)
def _loader(first_line: int) -> Any:
    """Return PyYAML's safe loader, with texts for all scalars but switches and null."""
    import yaml

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # the C one takes a tenth of the time
        yaml_implicit_resolvers: dict[Any, Any] = {  # noqa: RUF012  (PyYAML copies it for a subclass that adds to it)
            first: [(tag, pattern) for tag, pattern in resolvers if tag in TAGS]
            for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

    def text(loader: Any, node: Any) -> Text:
        value = Text(loader.construct_scalar(node))
        value.line = first_line + node.start_mark.line + (node.style in ("|", ">"))
        return value

    Loader.add_constructor("tag:yaml.org,2002:str", text)
    return Loader
