"""Cells, which are stacks that can be run, and the clauses that select stacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, Protocol

from matrix.ground.catalog.codec import fields_from_plain, fields_to_plain
from matrix.ground.catalog.schema import Identifier
from matrix.ground.catalog.stack import (
    ABSENT,
    BASE,
    COMPONENT_KEYS,
    DRIVER,
    GPUS,
    MCORE,
    PYTHON,
    SM,
    TE,
    TORCH,
    UNKNOWN,
    WRITER,
    Stack,
    Value,
    component_named,
    component_title,
    components,
    in_order,
    short,
)
from matrix.ground.catalog.versions import Range, is_version
from matrix.ground.errors import MatrixError

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
