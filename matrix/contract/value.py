"""The possible values of a name while a consuming package is read: a choice of values, each under a guard.

Only values that bear on Transformer Engine are distinguished; all others are Anything.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from matrix.contract.guard import Config, Guard, TeVersion, Unclear, all_of, any_of, negate

MOST_CHOICES = 12  # values of one name; the widest seen in any release is 5. Beyond it the name is OF_TE


@dataclass(frozen=True)
class Reference:
    """Something of Transformer Engine, by path ("module:attribute")."""

    path: str

    def attribute(self, name: str) -> Reference:
        """Return the reference to an attribute of this."""
        return Reference(f"{self.path}{name}" if self.path.endswith(":") else f"{self.path}.{name}")

    @property
    def is_constant(self) -> bool:
        """Return whether its name is one of a constant, such as HAVE_NCCL or _STARTED, whose value is not recorded."""
        name = re.split("[:.]", self.path)[-1]
        return "_" in name and name.isupper()


@dataclass(frozen=True)
class Method:
    """A method of an object of the provider, by the path of its class."""

    path: str


@dataclass(frozen=True)
class Literal:
    """A constant: None, a bool, a number, a string, or a tuple of constants."""

    value: object


@dataclass(frozen=True)
class Fact:
    """A truth value that depends on a guard."""

    guard: Guard


@dataclass(frozen=True)
class RunningVersion:
    """The version of the running Transformer Engine, as text or parsed."""

    parsed: bool


@dataclass(frozen=True)
class FixedVersion:
    """A version literal that the source parses."""

    text: str


@dataclass(frozen=True)
class ParametersOf:
    """The parameters of something of Transformer Engine, as inspect.signature returns them."""

    path: str


@dataclass(frozen=True)
class Outside:
    """A module or name from neither package, by dotted path."""

    path: str


@dataclass(frozen=True)
class InPackage:
    """A name of another module of the consuming package ("" for the module itself), looked up on use."""

    module: str
    name: str = ""


@dataclass(frozen=True)
class BodyLocation:
    """The location of a body in the package. `postponed`: its annotations are not evaluated."""

    module: str
    path: str
    is_package: bool
    postponed: bool = False
    function: str = ""


@dataclass(eq=False)
class FunctionDefinition:
    """A function of the consuming package, the location of the body that defines it, and the names of that body.

    `returned` caches the return values by arguments, `about_te` whether they may depend on TE.
    """

    node: ast.FunctionDef | ast.AsyncFunctionDef
    place: BodyLocation
    home: Names
    returned: dict[tuple[object, ...], ReturnValue] = field(default_factory=dict, repr=False)
    about_te: bool | None = None

    @property
    def decorators(self) -> set[str]:
        """Return the plain names of its decorators."""
        return {node.id for node in self.node.decorator_list if isinstance(node, ast.Name)}


@dataclass(frozen=True)
class ReturnValue:
    """The return value of a function, and the guard under which it returns rather than raises."""

    value: Choice
    completes: Guard


@dataclass(eq=False)
class ClassDefinition:
    """A class of the consuming package.

    `definitions` are the functions of its body, in the order in which they are read; `methods` those that the class
    has at the end of its body, by name; `own_fields` those that a dataclass adds, None for another class; `assigned`
    the other names of its body. `attributes`
    are those that only its constructor sets, with their values; filled when the constructor is read.
    """

    name: str
    bases: tuple[Choice, ...]
    definitions: list[FunctionDefinition] = field(default_factory=list)
    methods: dict[str, Choice] = field(default_factory=dict)
    own_fields: frozenset[str] | None = None
    assigned: frozenset[str] = frozenset()
    attributes: dict[str, Choice] = field(default_factory=dict)

    @property
    def is_config(self) -> bool:
        """Return whether it is a configuration: functions take its instances as `config`."""
        return self.name.endswith("Config")


@dataclass(frozen=True)
class Instance:
    """`self` (or `cls`) in a method of a class; `parent`: super() in that method."""

    blueprint: ClassDefinition
    parent: bool = False

    @property
    def name(self) -> str:
        """Return the class that Python names in an AttributeError."""
        return "super" if self.parent else self.blueprint.name


@dataclass(frozen=True)
class Keywords:
    """A dictionary that collects keyword arguments. `open`: it may have other keys."""

    entries: tuple[tuple[str, Guard], ...] = ()
    open: bool = False

    def put(self, name: str, guard: Guard = True) -> Keywords:
        """Return it with one more key."""
        return Keywords((*(e for e in self.entries if e[0] != name), (name, guard)), self.open)

    def drop(self, name: str) -> Keywords:
        """Return it without a key."""
        return Keywords(tuple(e for e in self.entries if e[0] != name), self.open)


@dataclass(frozen=True)
class Anything:
    """An unknown value; `text` is its expression ("config.fp8"; "" for a computed value).

    `of_te`: it was computed from Transformer Engine's version or API, so a condition on it is a guard. `of_class`: the
    provider's class whose instance it is, by path.
    """

    text: str = ""
    of_te: bool = False
    of_class: str = ""


Value: TypeAlias = (
    Reference | Method | Literal | Fact | RunningVersion | FixedVersion | ParametersOf | Outside | InPackage
    | FunctionDefinition | ClassDefinition | Instance | Keywords | Anything
)  # fmt: skip
Choice: TypeAlias = "tuple[tuple[Guard, Value], ...]"

ANYTHING = Anything()
OF_TE = Anything(of_te=True)
UNKNOWN: Choice = ((True, ANYTHING),)


def only(value: Value) -> Choice:
    """Return the choice that has no alternative."""
    return ((True, value),)


def gather(alternatives: Iterable[tuple[Guard, Value]]) -> Choice:
    """Return a choice with each value once, without values under False."""
    found: dict[Value, Guard] = {}
    for guard, value in alternatives:
        if guard is not False:
            found[value] = any_of(found[value], guard) if value in found else guard
    if len(found) > MOST_CHOICES:
        return only(OF_TE)
    return tuple((guard, value) for value, guard in found.items())


def under(guard: Guard, choice: Choice) -> list[tuple[Guard, Value]]:
    """Return the alternatives of a choice under one more guard."""
    return [(all_of(guard, each), value) for each, value in choice]


def merge(guard: Guard, first: Choice, second: Choice) -> Choice:
    """Return the choice that is `first` where `guard` holds and `second` where it does not."""
    if first == second or guard is True:
        return first
    if guard is False:
        return second
    if len(first) == len(second) == 1:
        one, other = first[0][1], second[0][1]
        if isinstance(one, Keywords) and isinstance(other, Keywords):
            return only(_merged_keywords(guard, one, other))
    return gather([*under(guard, first), *under(negate(guard), second)])


def _merged_keywords(guard: Guard, first: Keywords, second: Keywords) -> Keywords:
    first_entries, second_entries = dict(first.entries), dict(second.entries)
    entries = []
    for name in dict.fromkeys([*first_entries, *second_entries]):
        one, other = first_entries.get(name, False), second_entries.get(name, False)
        entries.append((name, one if one == other else any_of(all_of(guard, one), all_of(negate(guard), other))))
    return Keywords(tuple(entries), first.open or second.open)


def updated(kept: Keywords, added: Iterable[Value], named: Iterable[tuple[str, Guard]], *, more: bool) -> Keywords:
    """Return `kept.update(added, **named)`; `more`: other names may be passed too."""
    known = not more
    for value in added:
        known = known and isinstance(value, Keywords) and not value.open
        for name, guard in value.entries if isinstance(value, Keywords) else ():
            kept = kept.put(name, guard)
    for name, guard in named:
        kept = kept.put(name, guard)
    return Keywords(kept.entries, kept.open or not known)


def truth_of(choice: Choice, text: str) -> Guard:
    """Return the guard under which a value is true; `text` is its expression."""
    return any_of(*(all_of(guard, _truth(value, text)) for guard, value in choice))


def is_none(choice: Choice, text: str) -> Guard:
    """Return the guard under which a value is None."""
    return any_of(*(all_of(guard, _is_none(value, text)) for guard, value in choice))


def _truth(value: Value, text: str) -> Guard:
    if isinstance(value, Literal):
        return bool(value.value)
    if isinstance(value, Fact):
        return value.guard
    if isinstance(value, Anything):
        return Unclear(text) if value.of_te else Config(value.text or text)
    if isinstance(value, (Keywords, Instance, Outside)):
        return Config(text)
    if isinstance(value, Reference) and value.is_constant:
        return Unclear(text)
    return True


def _is_none(value: Value, text: str) -> Guard:
    if isinstance(value, Literal):
        return value.value is None
    if isinstance(value, Anything):
        return Unclear(f"{text} is None") if value.of_te else Config(f"{value.text or text} is None")
    return False


def compare_versions(op: str, left: Value, right: Value) -> Guard | None:
    """Return the guard of `left op right` when it compares the running version with a fixed one."""
    mirrored = {">=": "<=", "<=": ">=", ">": "<", "<": ">", "==": "==", "!=": "!="}
    if isinstance(left, RunningVersion) and left.parsed and isinstance(right, FixedVersion):
        return TeVersion(op, right.text)
    if isinstance(right, RunningVersion) and right.parsed and isinstance(left, FixedVersion):
        return TeVersion(mirrored[op], left.text)
    return None


def concerns_te(value: Value) -> bool:
    """Return whether a value computed from this one may depend on Transformer Engine."""
    return value.of_te if isinstance(value, Anything) else isinstance(value, (RunningVersion, ParametersOf))


@dataclass
class Names:
    """The names of one body and of the bodies around it. `finished`: the body was read to its end.

    `initial` holds the constants of a module that a function reassigns: their values until then; for other functions
    they are unknown.
    """

    own: dict[str, Choice] = field(default_factory=dict)
    around: Names | None = None
    of_class: bool = False
    finished: bool = False
    initial: dict[str, Choice] = field(default_factory=dict)

    def reassign(self, name: str) -> None:
        """Make a constant unknown to the functions that only read it."""
        choice = self.own.get(name)
        if choice and all(isinstance(value, Literal) for _, value in choice):
            self.initial[name], self.own[name] = choice, only(Anything(name))

    @property
    def module(self) -> Names:
        """Return the names of the module."""
        return self.around.module if self.around else self

    @property
    def inside(self) -> Names:
        """Return the enclosing names of a function defined in this body: a class is no scope of its methods."""
        return self.around if self.of_class and self.around else self

    def find(self, name: str) -> Choice | None:
        """Return the values of a name, from the innermost body outwards; None if it is unbound."""
        if name in self.own:
            return self.own[name]
        return self.around.find(name) if self.around else None
