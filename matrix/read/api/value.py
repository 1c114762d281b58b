"""The possible values of a name while a consuming package is read: a choice of values, each under a guard.

Only values that bear on Transformer Engine are distinguished; all others are Anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from matrix.ground.catalog import versions
from matrix.read.api.guard import Config, Guard, Holds, TeVersion, Unclear, all_of, any_of, names_te, negate, size

MOST_PARTS = 400  # conditions in the guard of a value; beyond it the value is unknown: one of TE 2.18 never ends
MOST_CHOICES = 12  # values of one name; the widest seen in any release is 5. Beyond it the name is OF_TE
MIRRORED = {">=": "<=", "<=": ">=", ">": "<", "<": ">", "==": "==", "!=": "!="}


class Value:
    """What an expression may be.

    `of_te`: a value computed from this one may depend on Transformer Engine. `differs`: it is itself of Transformer
    Engine, or may differ with it. `entries`: the keywords that it passes by `**`, name -> guard; `open`: it may pass
    others, too.
    """

    of_te = False
    differs = False
    entries: tuple[tuple[str, Guard], ...] = ()
    open = True

    @property
    def is_text(self) -> bool | None:
        """Return whether it is a string; None if that is unknown."""
        return None

    def truth(self, text: str) -> Guard:
        """Return the guard under which it is true; `text` is its expression."""
        return True

    def is_none(self, text: str) -> Guard:
        """Return the guard under which it is None; `text` is its expression."""
        return False

    def attribute(self, name: str) -> Value:
        """Return an attribute of it."""
        return self.computed()

    def method(self, name: str) -> Choice:
        """Return the method that a class inherits from it; () if it has none."""
        return UNKNOWN

    def computed(self) -> Value:
        """Return a value that is computed from it."""
        return OF_TE if self.of_te else ANYTHING

    def as_version(self) -> Value:
        """Return the version that packaging parses from it."""
        return self.computed()

    def bears_on_te(self, mentions: Mentions) -> bool:
        """Return whether a function that uses it may depend on Transformer Engine."""
        return self.of_te or self.differs


Choice: TypeAlias = "tuple[tuple[Guard, Value], ...]"
LookUp: TypeAlias = "Callable[[str, str], Choice]"  # (module, name) -> the values of a module's name
Mentions: TypeAlias = "Callable[[str], bool]"  # module -> whether its source names Transformer Engine


@dataclass(frozen=True)
class Reference(Value):
    """Something of Transformer Engine, by path ("module:attribute")."""

    path: str
    differs = True

    def attribute(self, name: str) -> Reference:
        """Return the reference to an attribute of this."""
        return Reference(f"{self.path}{name}" if self.path.endswith(":") else f"{self.path}.{name}")

    def method(self, name: str) -> Choice:
        """Return the reference to a method of this class."""
        return single(self.attribute(name))

    def truth(self, text: str) -> Guard:
        """Return the guard under which it is true; the value of a constant is not recorded."""
        return Holds(self.path) if self.is_constant else True

    @property
    def is_constant(self) -> bool:
        """Return whether its name is one of a constant, such as HAVE_NCCL or _STARTED, whose value is not recorded."""
        name = re.split("[:.]", self.path)[-1]
        return "_" in name and name.isupper()


@dataclass(frozen=True)
class Method(Value):
    """A method of an object of the provider, by the path of its class."""

    path: str


@dataclass(frozen=True)
class Literal(Value):
    """A constant: None, a bool, a number, a string, or a tuple of constants."""

    value: object

    def truth(self, text: str) -> Guard:
        """Return whether it is true."""
        return bool(self.value)

    def is_none(self, text: str) -> Guard:
        """Return whether it is None."""
        return self.value is None

    @property
    def is_text(self) -> bool:
        """Return whether it is a string."""
        return isinstance(self.value, str)

    def as_version(self) -> Value:
        """Return the version that this text or tuple of numbers is, if it is one."""
        text = ".".join(map(str, self.value)) if isinstance(self.value, tuple) else self.value
        return FixedVersion(text) if isinstance(text, str) and versions.is_version(text) else ANYTHING


@dataclass(frozen=True)
class Fact(Value):
    """A truth value that depends on a guard."""

    guard: Guard
    differs = True

    def truth(self, text: str) -> Guard:
        """Return the guard."""
        return self.guard


@dataclass(frozen=True)
class RunningVersion(Value):
    """The version of the running Transformer Engine, as text or parsed."""

    parsed: bool
    of_te = True

    @property
    def is_text(self) -> bool:
        """Return whether it is a string."""
        return not self.parsed

    def as_version(self) -> Value:
        """Return the parsed version."""
        return RunningVersion(parsed=True)

    def attribute(self, name: str) -> Value:
        """Return its release, a tuple of numbers, as this version."""
        return self if self.parsed and name == "release" else self.computed()


@dataclass(frozen=True)
class FixedVersion(Value):
    """A version literal that the source parses, or compares with a parsed one."""

    text: str


@dataclass(frozen=True)
class ParametersOf(Value):
    """The parameters of something of Transformer Engine, as inspect.signature returns them."""

    path: str
    of_te = True

    def attribute(self, name: str) -> Value:
        """Return the parameters for a list of them, such as `parameters` of a signature."""
        return self if name in ("parameters", "args", "kwonlyargs", "keys", "values", "get") else OF_TE


class OfTheRun(Value):
    """A value whose truth is a condition of the run."""

    def truth(self, text: str) -> Guard:
        """Return the condition of the run."""
        return Config(text)


@dataclass(frozen=True)
class Outside(OfTheRun):
    """A module or name from neither package, by dotted path."""

    path: str

    def truth(self, text: str) -> Guard:
        """Return the condition of the run; a type checker alone sees TYPE_CHECKING as true."""
        return not self.path.endswith("TYPE_CHECKING") and super().truth(text)

    def attribute(self, name: str) -> Value:
        """Return a name of this module, or an attribute of this name."""
        return Outside(f"{self.path}.{name}")

    def bears_on_te(self, mentions: Mentions) -> bool:
        """Return whether it may read the version or the API of Transformer Engine."""
        return self.path.startswith(("importlib", "inspect"))


@dataclass(frozen=True)
class InPackage(Value):
    """A name of another module of the consuming package ("" for the module itself), looked up on use."""

    module: str
    name: str = ""

    def bears_on_te(self, mentions: Mentions) -> bool:
        """Return whether its module names Transformer Engine."""
        return bool(self.name) and mentions(self.module)


@dataclass(frozen=True)
class Keywords(OfTheRun):
    """A dictionary that collects keyword arguments, name -> guard. `open`: it may have other keys.

    `items` are values of keys as the dictionary was written, without those that have changed.
    """

    entries: tuple[tuple[str, Guard], ...] = ()
    open: bool = False
    items: tuple[tuple[str, Value], ...] = ()
    differs = True

    def put(self, name: str, guard: Guard = True) -> Keywords:
        """Return it with one more key."""
        return Keywords((*self.drop(name).entries, (name, guard)), self.open, self.items_without(name))

    def items_without(self, name: str) -> tuple[tuple[str, Value], ...]:
        """Return the values of the other keys."""
        return tuple(item for item in self.items if item[0] != name)

    def drop(self, name: str) -> Keywords:
        """Return it without a key."""
        others = tuple(entry for entry in self.entries if entry[0] != name)
        return Keywords(others, self.open, self.items_without(name))

    def opened(self) -> Keywords:
        """Return it with unknown further keys."""
        return Keywords(self.entries, open=True)

    def updated(self, added: Sequence[Value], named: Iterable[tuple[str, Guard]], *, more: bool) -> Keywords:
        """Return the result of `self.update(added, **named)`; `more`: other names may be passed too."""
        keywords = Keywords(self.entries, self.open or more or any(source.open for source in added))
        for name, guard in [*(entry for source in added for entry in source.entries), *named]:
            keywords = keywords.put(name, guard)
        return keywords

    def merged(self, guard: Guard, other: Keywords) -> Keywords:
        """Return the dictionary that is this one where `guard` holds and `other` where it does not."""
        if_true, if_false = dict(self.entries), dict(other.entries)
        entries: dict[str, Guard] = {}
        for name in [*if_true, *if_false]:
            yes, no = if_true.get(name, False), if_false.get(name, False)
            entries[name] = yes if yes == no else any_of(all_of(guard, yes), all_of(negate(guard), no))
        return Keywords(tuple(entries.items()), self.open or other.open)


@dataclass(frozen=True)
class Anything(Value):
    """An unknown value; `text` is its expression ("config.fp8"; "" for a computed value).

    `of_te`: it was computed from Transformer Engine's version or API, so a condition on it is a guard. `of_class`: the
    provider's class whose instance it is, by path.
    """

    text: str = ""
    of_te: bool = False
    of_class: str = ""

    def truth(self, text: str) -> Guard:
        """Return a condition on it, with its name at its origin."""
        return Unclear(text) if self.of_te else Config(self.text or text)

    def is_none(self, text: str) -> Guard:
        """Return the condition that it is None."""
        return Unclear(f"{text} is None") if self.of_te else Config(f"{self.text or text} is None")

    def attribute(self, name: str) -> Value:
        """Return an attribute by its name; every configuration is written `config`, whatever its variable is."""
        if self.of_te or not self.text:
            return self.computed()
        return Anything(f"{'config' if self.text.endswith('config') else self.text}.{name}")


ANYTHING = Anything()
OF_TE = Anything(of_te=True)
UNKNOWN: Choice = ((True, ANYTHING),)


def single(value: Value) -> Choice:
    """Return the choice that has no alternative."""
    return ((True, value),)


def gather(alternatives: Iterable[tuple[Guard, Value]]) -> Choice:
    """Return a choice with each value once, without values under False."""
    guards: dict[Value, Guard] = {}
    for guard, value in alternatives:
        if guard is not False:
            guards[value] = any_of(guards[value], guard) if value in guards else guard
    if len(guards) > MOST_CHOICES:
        return single(OF_TE)
    if len(guards) > 1 and max(map(size, guards.values())) > MOST_PARTS:
        return single(OF_TE if any(map(names_te, guards.values())) else ANYTHING)
    return tuple((guard, value) for value, guard in guards.items())


def guarded(guard: Guard, choice: Choice) -> list[tuple[Guard, Value]]:
    """Return the alternatives of a choice under one more guard."""
    return [(all_of(guard, condition), value) for condition, value in choice]


def merge(guard: Guard, first: Choice, second: Choice) -> Choice:
    """Return the choice that is `first` where `guard` holds and `second` where it does not."""
    if first == second or guard is True:
        return first
    if guard is False:
        return second
    if len(first) == len(second) == 1:
        (_, if_true), (_, if_false) = first[0], second[0]
        if isinstance(if_true, Keywords) and isinstance(if_false, Keywords):
            return single(if_true.merged(guard, if_false))
    return gather([*guarded(guard, first), *guarded(negate(guard), second)])


def settled(choice: Choice, look_up: LookUp) -> Choice:
    """Replace names of other modules by their values there."""
    if not any(isinstance(value, InPackage) and value.name for _, value in choice):
        return choice
    alternatives: list[tuple[Guard, Value]] = []
    for guard, value in choice:
        if isinstance(value, InPackage) and value.name:
            alternatives += guarded(guard, settled(look_up(value.module, value.name), look_up))
        else:
            alternatives.append((guard, value))
    return gather(alternatives)


def computed_from(values: Iterable[Value]) -> Choice:
    """Return an unknown value that is computed from others."""
    return single(OF_TE if any(value.of_te for value in values) else ANYTHING)


def constant(choice: Choice) -> object:
    """Return the constant that a value certainly is, None for another value."""
    value = choice[0][1] if len(choice) == 1 else None
    return value.value if isinstance(value, Literal) else None


def values_of(choices: Iterable[Choice]) -> list[Value]:
    """Return the values of several choices."""
    return [value for choice in choices for _, value in choice]


def truth_of(choice: Choice, text: str) -> Guard:
    """Return the guard under which a value is true; `text` is its expression."""
    return any_of(*(all_of(guard, value.truth(text)) for guard, value in choice))


def is_none(choice: Choice, text: str) -> Guard:
    """Return the guard under which a value is None."""
    return any_of(*(all_of(guard, value.is_none(text)) for guard, value in choice))


def compare_versions(op: str, left: Value, right: Value) -> Guard | None:
    """Return the guard of `left op right` when it compares the running version with a fixed one."""
    left, right = (value.as_version() if isinstance(value, Literal) else value for value in (left, right))
    if isinstance(left, RunningVersion) and left.parsed and isinstance(right, FixedVersion):
        return TeVersion(op, right.text)
    if isinstance(right, RunningVersion) and right.parsed and isinstance(left, FixedVersion):
        return TeVersion(MIRRORED[op], left.text)
    return None
