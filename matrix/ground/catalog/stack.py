"""Stacks: the components that are installed, those that are absent, those that nothing states; places in texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from packaging.utils import canonicalize_name

from matrix.ground.catalog.codec import KeyedField, decode
from matrix.ground.catalog.schema import read_toml
from matrix.ground.errors import MatrixError, closest


@dataclass(frozen=True)
class Place:
    """A source and its line, counted from 1; line 0 is a source without lines, such as "command line" or an image."""

    path: str
    line: int = 0

    def __str__(self) -> str:
        """Return "path:line", or the path alone without a line."""
        return f"{self.path}:{self.line}" if self.line else self.path


TABLE: Final = Path(__file__).parent / "facts" / "components.toml"
# The components that code names; every other one is data.
BASE: Final = "base"  # the id of what provides Python and torch: a container, or an environment of wheels
TORCH: Final = "torch"
MCORE: Final = "megatron-core"
TE: Final = "transformer-engine"
CUDA: Final = "cuda"
DRIVER: Final = "driver"  # a version (470.161.03) or a branch (470)
PYTHON: Final = "python"
TOOLKIT: Final = "toolkit"  # CUDA beside the wheels, with its compat package; absent: the wheels alone have CUDA
SM: Final = "sm"  # the compute capability: 8.0
GPUS: Final = "gpus"  # a count
WRITER_MCORE: Final = f"writer-{MCORE}"  # of the stack that wrote the checkpoint which this one reads
REST: Final = "*"  # in plain data: every other component
WRITER_TE: Final = f"writer-{TE}"
WRITER: Final = {WRITER_MCORE: MCORE, WRITER_TE: TE}


class Absence(Enum):
    """A component without a version."""

    ABSENT = "absent"
    UNKNOWN = "unknown"

    def __str__(self) -> str:
        return "none" if self is Absence.ABSENT else "unknown"


ABSENT: Final = Absence.ABSENT
UNKNOWN: Final = Absence.UNKNOWN
# PEP 440 text (of BASE, an id); or the component is absent; or nothing states it.
Value = Absence | str


@dataclass(frozen=True)
class Stack:
    """A frozen mapping from components to their values; each other component is `rest`.

    `rest` is ABSENT for an environment of which every package is known, else UNKNOWN.
    """

    components: Mapping[str, Value] = field(default_factory=dict)
    rest: Absence = UNKNOWN

    def __post_init__(self) -> None:
        """Leave out the components that have the value of all others, so that equal stacks are equal."""
        components = {name: value for name, value in self.components.items() if value is not self.rest}
        object.__setattr__(self, "components", components)

    def __getitem__(self, name: str) -> Value:
        return self.components.get(name, self.rest)

    def __iter__(self) -> Iterator[str]:
        return iter(self.components)

    def __hash__(self) -> int:
        return hash((frozenset(self.components.items()), self.rest))

    def to_plain(self) -> dict[str, str]:
        """Return the values by component for the codec; "*" stands for all others where these are absent."""
        values = self.components if self.rest is UNKNOWN else {**self.components, REST: self.rest}
        return {name: value if isinstance(value, str) else value.value for name, value in values.items()}

    @classmethod
    def from_plain(cls, value: Mapping[str, str]) -> Stack:
        """Return the stack of the plain data of `to_plain`."""
        words = {absence.value: absence for absence in Absence}
        values = {name: words.get(text, text) for name, text in decode(dict[str, str], value).items()}
        default = values.pop(REST, None)
        return cls(values, ABSENT if default is ABSENT else UNKNOWN)

    def version(self, name: str) -> str | None:
        """Return the version of a component, None where it is absent or unknown."""
        value = self[name]
        return value if isinstance(value, str) else None

    @property
    def versions(self) -> dict[str, str]:
        """Return the components that have a version."""
        return {name: value for name, value in self.components.items() if isinstance(value, str)}

    def with_(self, changes: Mapping[str, Value]) -> Stack:
        """Return the stack with these components instead of its own."""
        return Stack({**self.components, **changes}, self.rest)

    def over(self, base: Stack) -> Stack:
        """Return this stack laid over another one, which provides what this one does not state."""
        return Stack({**base.components, **self.components}, base.rest)


NOTHING: Final = Stack(rest=ABSENT)


class CallPair(NamedTuple):
    """Two packages of which level contract compares the calls of the one with the API of the other.

    `between`: the provider has builds between its releases, which have the API of the releases around them.
    """

    consumer: str
    provider: str
    between: bool = False


CALL_PAIRS: Final = (CallPair(MCORE, TE), CallPair(MCORE, TORCH, between=True), CallPair(TE, TORCH, between=True))


@dataclass(frozen=True)
class Component:
    """A component that a stack can name, as components.toml describes it."""

    name: str
    short: str = ""
    title: str = ""
    aliases: tuple[str, ...] = ()
    distribution: bool = True
    example: str = ""
    follows: str = ""


@dataclass(frozen=True)
class _Table:
    component: tuple[Component, ...]


@cache
def components() -> Mapping[str, Component]:
    """Return the components of the table by name."""
    return {component.name: component for component in decode(_Table, read_toml(TABLE), str(TABLE)).component}


@cache
def _names() -> Mapping[str, str]:
    """Return the component that each name, short name and alias means, in canonical form."""
    meanings = {}
    for component in components().values():
        for word in (component.name, component.short or component.name, *component.aliases):
            meanings[str(canonicalize_name(word))] = component.name
    return meanings


def in_order(names: Iterable[str]) -> list[str]:
    """Return names of components in the order of the table; those without a line follow as they are."""
    order = list(components())
    return sorted(names, key=lambda name: order.index(name) if name in order else len(order))


def component_named(word: str, further: Iterable[str] = ()) -> str:
    """Return the component that a word means, "" for an unknown one; `further` are packages without a line."""
    canonical = str(canonicalize_name(word))
    return _names().get(canonical) or (canonical if canonical in further else "")


def known_component(word: str, further: Iterable[str] = ()) -> str:
    """Return the component that a word means. Raises MatrixError, with the nearest one, for an unknown one."""
    packages = list(further)
    if name := component_named(word, packages):
        return name
    words = {*_names(), *packages}
    raise MatrixError(
        "no such component",
        got=word,
        expected="a package, base, python, driver, sm, gpus, ...",
        fix=closest(word, words),
    )


def short(name: str) -> str:
    """Return the name of a component in ids and expressions: mcore for megatron-core."""
    component = components().get(name)
    return (component and component.short) or name


def component_title(name: str) -> str:
    """Return the name of a component in sentences: Transformer Engine for transformer-engine."""
    component = components().get(name)
    return (component and component.title) or name


# Of a mapping by component whose items are keys of a table: mcore = ">=0.9".
COMPONENT_KEYS: Final = {"keys": KeyedField(component_named, short, _names)}
