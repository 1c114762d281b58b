"""Stacks: the components that are installed, those that are absent, those that nothing states; places in texts.

Cells are stacks that can be run; clauses select stacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from packaging.utils import canonicalize_name

from matrix.ground.catalog.codec import KeyedField, decode, fields_from_plain, fields_to_plain
from matrix.ground.catalog.schema import Identifier, read_toml
from matrix.ground.catalog.versions import Range, is_version
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
# Which of these calls a job reaches depends on its model: none is certain. They are read where a stack has the package.
BRIDGE_PAIRS: Final = tuple(CallPair(name, MCORE) for name in ("megatron-bridge", "mbridge", "mcore-bridge"))


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
    framework: bool = False


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


EVERYTHING: Final = "everything"  # the text of a clause without a condition
# The components of each cell, besides the further packages that its base pins or that are laid over it.
DECIDED: Final = (BASE, TORCH, MCORE, TE, DRIVER, SM, GPUS, PYTHON, *WRITER)
NAMED: Final = (MCORE, TE, DRIVER)  # the components that every id names, in order
NONE: Final = str(ABSENT)  # an absent component in an id


@dataclass(frozen=True)
class Cell:
    """A stack that can be run: a base, what it contains with all that is laid over it, and a readable id.

    A cell decides megatron-core, Transformer Engine, driver and writer: one that it does not use is ABSENT. `packages`
    are the further packages that are laid over the base, as far as the id names them.
    """

    base: str
    stack: Stack
    packages: tuple[str, ...] = ()

    @cached_property
    def id(self) -> str:
        """Return the readable id: ngc-24.07/mcore-0.8.0/te-1.8.0+37280ec/driver-535.

        The writer and further packages follow where the cell has them: .../writer-mcore-0.19.2/transformers-4.57.6.
        """
        return "/".join([self.base, *(f"{name}-{value}" for name, value in self.named.items())])

    @property
    def named(self) -> dict[str, str]:
        """Return what the id names besides the base: name -> version, "none" for a component that is absent."""
        writer = [name for name in WRITER if self.stack.version(name)]
        names = (*NAMED, *writer, *self.packages)
        return {short(name).replace("_", "-"): str(self.stack[name]) for name in names}

    @property
    def pins(self) -> tuple[str, ...]:
        """Return the further packages that are laid over the base, as "NAME==VERSION"."""
        return tuple(f"{name}=={self.stack[name]}" for name in self.packages)

    @cached_property
    def writer(self) -> Cell | None:  # `plan --stats` asks for it 700,000 times
        """Return the cell that wrote the checkpoint, None where none is read: this one with the writer's packages."""
        versions = {component: version for name, component in WRITER.items() if (version := self.stack.version(name))}
        return self.with_({**versions, **dict.fromkeys(WRITER, ABSENT)}) if versions else None

    def with_(self, changes: Mapping[str, Value]) -> Cell:
        """Return the cell with these components instead of its own."""
        return replace(self, stack=self.stack.with_(changes))

    def to_plain(self) -> dict[str, Any]:
        """Return plain data for the codec, with the id for other readers."""
        return {"id": self.id, **fields_to_plain(self)}

    @classmethod
    def from_plain(cls, value: Mapping[str, Any]) -> Cell:
        """Return the cell of the plain data of `to_plain`. Raises MalformedError."""
        return fields_from_plain(cls, value, "id")


class Bound(Protocol):
    """What a condition allows: a Range of versions, or some images."""

    def __contains__(self, value: str, /) -> bool: ...


# Whether an unknown component is in a range, or the unknown image among some: None where that is not known.
Decide = Callable[[str, Bound], "bool | None"]


def undecided(name: str, bound: Bound) -> bool | None:
    """Return None: nothing is known of an unknown component."""
    return None


@dataclass(frozen=True)
class Clause:
    """Conditions on components, all of which must hold; what is left out may be anything.

    `base` are images, one of which must be that of the stack. `bounds` are ranges by component: in TOML each is a key
    of its own, by any name of the component. `reason` is for display, as one line.
    """

    base: tuple[Identifier, ...] = ()
    bounds: Mapping[str, Range] = field(default_factory=dict, metadata=COMPONENT_KEYS)
    reason: str = ""

    def __post_init__(self) -> None:
        """Put the bounds in the order of the components, so that texts have one order, and the reason in one line."""
        object.__setattr__(self, "bounds", {name: self.bounds[name] for name in in_order(self.bounds)})
        object.__setattr__(self, "reason", " ".join(self.reason.split()))

    def matches(self, stack: Stack) -> bool:
        """Return whether every condition is known to hold for a stack."""
        return self.depends_on(stack) == ()

    def depends_on(self, stack: Stack, decide: Decide = undecided) -> tuple[str, ...] | None:
        """Return the unknown components of a stack on which it depends whether the clause matches.

        () where it matches, None where it does not. `decide` judges an unknown component of which something is known.
        """
        depends: tuple[str, ...] = ()
        components, default = stack.components, stack.rest
        for name, bound in self.conditions:
            value = components.get(name, default)
            holds = decide(name, bound) if value is UNKNOWN else value is not ABSENT and value in bound
            if holds is False:
                return None
            if holds is None:
                depends += (name,)
        return depends

    @cached_property
    def conditions(self) -> tuple[tuple[str, Bound], ...]:  # a night asks for them a million times
        """Return (component, what its value must be in) for each condition."""
        image: tuple[tuple[str, Bound], ...] = ((BASE, self.base),) if self.base else ()
        return image + tuple(self.bounds.items())

    @property
    def components(self) -> tuple[str, ...]:
        """Return the components on which it depends."""
        return tuple(name for name, _ in self.conditions)

    def __str__(self) -> str:
        parts = [f"base in ({', '.join(self.base)})"] if self.base else []
        return (
            " and ".join(parts + [f"{short(name)} {bound.text}" for name, bound in self.bounds.items()]) or EVERYTHING
        )


def parse_cell_id(text: str) -> dict[str, Any]:
    """Return what a cell id names, as arguments of Catalog.cell. Raises MatrixError for anything else."""
    base, *parts = text.split("/")
    values: dict[str, Value] = {}
    packages = []
    for index, part in enumerate(parts):
        word, _, version = part.rpartition("-")
        name = component_named(word) or word
        expected = NAMED[index] if index < len(NAMED) else name
        if not word or name != expected or name in values:
            break
        if not (is_version(version) or version == NONE):
            example = components()[name].example if name in components() else "1.2.3"
            raise MatrixError(
                f"not a version of {component_title(name)}", where=text, got=version, expected=f"{example}, or none"
            )
        values[name] = ABSENT if version == NONE else version
        if name not in (*NAMED, *WRITER):
            packages.append(name)
    if len(values) != len(parts) or len(parts) < len(NAMED):
        raise MatrixError(
            "not a cell id",
            got=text,
            expected="BASE/mcore-VERSION/te-VERSION/driver-VERSION",
            fix="megatrix plan lists the cells of the night; none is the value of a component that is not used",
        )
    return {"base": base, "values": values, "packages": tuple(packages)}
