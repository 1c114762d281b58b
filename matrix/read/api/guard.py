"""The condition under which a line of a consuming package is reached, as a small expression tree.

A guard is one of
    True / False
    TeVersion(">=", "1.10.0.dev0")      the running TE version, compared by PEP 440
    Offers("transformer_engine.pytorch:RMSNorm")   the name exists (hasattr)
    Loads("transformer_engine.pytorch:RMSNorm")    an import or an attribute before this line did not fail
    Takes("transformer_engine.pytorch:fp8_model_init", "recipe")   the parameter exists (inspect.signature)
    Config("config.tp_comm_overlap")    a condition of the run, independent of TE
    Holds("transformer_engine.pytorch.ep:_BOOTSTRAPPED")   the truth value of a constant
    Unclear("len(signature(...)) > 3")  a condition on TE whose form is not understood
    Not(guard) / AllOf(guards) / AnyOf(guards)
The constructors `negate`, `all_of` and `any_of` simplify; nothing else builds a tree. Equal guards are one object, so
that comparing and hashing a deep tree cost nothing.

`truth` evaluates in Kleene's logic with two unknowns: a Config may hold or not, so the code under it is reachable; an
Unclear makes a finding `possible`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from operator import eq, ge, gt, is_, le, lt, ne
from typing import Any, ClassVar, Protocol, TypeAlias

from packaging.version import Version

from matrix.ground.catalog import versions


class _Sharing(type):
    """Makes one object for equal arguments."""

    # Never emptied: all recorded releases together have some ten thousand different guards.
    _existing: ClassVar[dict[tuple[object, ...], object]] = {}

    def __call__(cls, *values: object) -> Any:
        key = (cls, *values)
        guard = cls._existing.get(key)
        if guard is None:
            guard = cls._existing[key] = super().__call__(*values)
        return guard


@dataclass(frozen=True, eq=False)
class TeVersion(metaclass=_Sharing):
    """The running TE version compares with `version` as `op` requires ("==", "!=", ">=", ">", "<=", "<")."""

    op: str
    version: str


@dataclass(frozen=True, eq=False)
class Offers(metaclass=_Sharing):
    """TE has `path` ("module:attribute.attribute"; "module:" is the module itself)."""

    path: str


@dataclass(frozen=True, eq=False)
class Loads(metaclass=_Sharing):
    """Importing or reading `path` does not fail; true if the surface does not record the path."""

    path: str


@dataclass(frozen=True, eq=False)
class Takes(metaclass=_Sharing):
    """The callable at `path` has the parameter."""

    path: str
    parameter: str


@dataclass(frozen=True, eq=False)
class Config(metaclass=_Sharing):
    """A condition of the run (configuration, environment, state), as a short normalised expression."""

    text: str


@dataclass(frozen=True, eq=False)
class Holds(metaclass=_Sharing):
    """The constant at `path` is true: unclear, but a condition of the run where TE's own functions change it."""

    path: str


@dataclass(frozen=True, eq=False)
class Unclear(metaclass=_Sharing):
    """A condition on TE whose form is not understood."""

    text: str


@dataclass(frozen=True, eq=False)
class Not(metaclass=_Sharing):
    """The part does not hold."""

    part: Guard


@dataclass(frozen=True, eq=False)
class AllOf(metaclass=_Sharing):
    """Every part holds."""

    parts: tuple[Guard, ...]


@dataclass(frozen=True, eq=False)
class AnyOf(metaclass=_Sharing):
    """At least one part holds."""

    parts: tuple[Guard, ...]


Guard: TypeAlias = bool | TeVersion | Offers | Loads | Takes | Holds | Config | Unclear | Not | AllOf | AnyOf

INSTALLED = " is installed"  # the end of the condition that another package is there
OPPOSITE = {">=": "<", "<": ">=", ">": "<=", "<=": ">", "==": "!=", "!=": "=="}


@lru_cache(maxsize=65536)
def negate(guard: Guard) -> Guard:
    """Return the negation, with `not` only at the leaves."""
    if isinstance(guard, bool):
        return not guard
    if isinstance(guard, Not):
        return guard.part
    if isinstance(guard, TeVersion):
        return TeVersion(OPPOSITE[guard.op], guard.version)
    if isinstance(guard, AllOf):
        return any_of(*map(negate, guard.parts))
    if isinstance(guard, AnyOf):
        return all_of(*map(negate, guard.parts))
    return Not(guard)


@lru_cache(maxsize=65536)
def all_of(*guards: Guard) -> Guard:
    """Return the conjunction: flat, without repetition, False when it contradicts itself."""
    return _joined(guards, AllOf, AnyOf, neutral=True)


@lru_cache(maxsize=65536)
def any_of(*guards: Guard) -> Guard:
    """Return the disjunction: flat, without repetition, True when it covers every case."""
    return _joined(guards, AnyOf, AllOf, neutral=False)


def _joined(guards: Iterable[Guard], kind: type[AllOf | AnyOf], dual: type[AllOf | AnyOf], *, neutral: bool) -> Guard:
    parts: dict[Guard, None] = {}
    for guard in guards:
        for part in guard.parts if isinstance(guard, kind) else (guard,):
            if part is not neutral:
                parts[part] = None
    facts: dict[Guard, bool] = {}
    equal: dict[str, Guard] = {}  # x == a excludes x == b: names of one place are not aliases of one another
    for part in parts:
        if part is (not neutral) or facts.get(part, neutral) is not neutral:
            return not neutral
        facts[part], facts[negate(part)] = neutral, not neutral
        fact = part if neutral else negate(part)
        if isinstance(fact, Config) and equal.setdefault(_equated(fact), fact) is not fact and _equated(fact):
            return not neutral
    for part in parts:
        # In `a and (a or b)` and `a and (not a or b)` the second part is simplified with a; likewise for `or`.
        simplified = _simplified_parts(part, facts, equal) if isinstance(part, dual) else part
        if simplified is not part:
            replaced = [simplified if guard is part else guard for guard in parts]
            return _joined(replaced, kind, dual, neutral=neutral)
    if not parts:
        return neutral
    return next(iter(parts)) if len(parts) == 1 else kind(tuple(parts))


def _simplified(guard: Guard, facts: Mapping[Guard, bool], equal: Mapping[str, Guard]) -> Guard:
    """Return a guard with its known parts replaced by their truth values."""
    fact = facts.get(guard)
    if fact is not None:
        return fact
    if isinstance(guard, (AllOf, AnyOf)):
        return _simplified_parts(guard, facts, equal)
    if isinstance(guard, Not):
        return negate(_simplified(guard.part, facts, equal))
    operand = _equated(guard) if isinstance(guard, Config) else ""
    return False if operand and operand in equal else guard


def _simplified_parts(guard: AllOf | AnyOf, facts: Mapping[Guard, bool], equal: Mapping[str, Guard]) -> Guard:
    parts = [_simplified(part, facts, equal) for part in guard.parts]
    if all(map(is_, parts, guard.parts)):
        return guard
    return rejoined(guard, parts)


def rejoined(guard: AllOf | AnyOf, parts: Iterable[Guard]) -> Guard:
    """Return other parts, joined as those of a guard are."""
    return (all_of if isinstance(guard, AllOf) else any_of)(*parts)


@lru_cache(maxsize=65536)
def _equated(guard: Config) -> str:
    """Return the left side of `x == 'mxfp8'` and the function whose local names it has, "" for other conditions.

    `gelu` and `gelu in f` (matrix.read.api.flow.elsewhere) may be one imported function.
    """
    operand, equals, comparand = guard.text.partition(" == ")
    _, inside, function = comparand.partition(" in ")
    return f"{operand}{inside}{function}" if equals else ""


@lru_cache(maxsize=65536)
def leaves(guard: Guard) -> frozenset[Guard]:
    """Return the conditions of a guard, without `not`."""
    if isinstance(guard, (AllOf, AnyOf)):
        return frozenset().union(*map(leaves, guard.parts))
    if isinstance(guard, TeVersion):
        return frozenset([guard, negate(guard)])
    return leaves(guard.part) if isinstance(guard, Not) else frozenset([guard])


@lru_cache(maxsize=65536)
def missing(guard: Guard) -> frozenset[str]:
    """Return the paths of which each is enough, if it does not load, for a guard that else never holds."""
    if _loading(guard) is not False:
        return frozenset()
    paths = {leaf.path for leaf in leaves(guard) if isinstance(leaf, Loads)}
    return frozenset(path for path in paths if _loading(guard, path) is not False)


@lru_cache(maxsize=65536)
def _loading(guard: Guard, absent: str = "") -> Guard:
    """Return a guard where every path but `absent` loads."""
    if isinstance(guard, (AllOf, AnyOf)):
        return rejoined(guard, (_loading(part, absent) for part in guard.parts))
    if isinstance(guard, Not):
        return negate(_loading(guard.part, absent))
    return guard.path != absent if isinstance(guard, Loads) else guard


@lru_cache(maxsize=65536)
def size(guard: Guard) -> int:
    """Return the number of conditions in a guard, each as often as it occurs."""
    if isinstance(guard, (AllOf, AnyOf)):
        return sum(map(size, guard.parts))
    return size(guard.part) if isinstance(guard, Not) else 1


def guard_parts(guard: Guard) -> tuple[Guard, ...]:
    """Return the parts of a conjunction, or the guard itself."""
    return guard.parts if isinstance(guard, AllOf) else (guard,)


def implies(guard: Guard, other: Guard) -> bool:
    """Return whether another guard holds wherever a guard does, as far as their parts show."""
    parts = set(guard_parts(guard))
    return parts.issuperset(guard_parts(other)) or set(guard_parts(all_of(guard, other))) == parts


def names_te(guard: Guard) -> bool:
    """Return whether a guard depends on Transformer Engine."""
    return isinstance(guard, bool) or any(not isinstance(leaf, (bool, Config)) for leaf in leaves(guard))


class Truth(IntEnum):
    """The truth value of a guard for one TE, ordered so that a conjunction has that of its weakest part."""

    NO = 0
    UNCLEAR = 1  # depends on a condition that was not understood
    REACHABLE = 2  # depends on the run's configuration only
    YES = 3


class Offer(Protocol):
    """The part of a TE surface that guards need."""

    def offers(self, path: str) -> bool | None:
        """Return whether `path` exists; None if the surface does not record it."""

    def takes(self, path: str, parameter: str) -> bool | None:
        """Return whether the callable at `path` has that parameter; None if the surface does not record it."""

    def changes(self, path: str) -> bool:
        """Return whether functions of its own module change the truth value at `path`."""


COMPARE: dict[str, Callable[[Version, Version], bool]] = {">=": ge, ">": gt, "<=": le, "<": lt, "==": eq, "!=": ne}


class Judge:
    """Evaluates guards for one TE, each once.

    `surface` decides Offers, Loads and Takes; `version` is the version that this TE reports at run time; `added` are
    the paths that the consuming package assigns; `assumed` are those that are taken to load.
    """

    def __init__(
        self, surface: Offer, version: str, added: Collection[str] = (), assumed: Collection[str] = ()
    ) -> None:
        self._surface, self._added, self._assumed = surface, added, assumed
        self._version = versions.parse(version)
        self._truths: dict[Guard, Truth] = {}
        self._rests: dict[Guard, Guard] = {}

    def truth(self, guard: Guard) -> Truth:
        """Return the truth value of `guard`."""
        truth = self._truths.get(guard)
        if truth is None:
            truth = self._truths[guard] = self._evaluate(guard)
        return truth

    def rest(self, guard: Guard) -> Guard:
        """Return `guard` with the parts that this TE decides evaluated; mostly conditions of the run remain."""
        if guard not in self._rests:
            truth, remainder = self.truth(guard), guard
            if truth in (Truth.YES, Truth.NO):
                remainder = truth is Truth.YES
            elif isinstance(guard, (AllOf, AnyOf)):
                remainder = rejoined(guard, map(self.rest, guard.parts))
            self._rests[guard] = remainder
        return self._rests[guard]

    def _evaluate(self, guard: Guard) -> Truth:
        if isinstance(guard, AllOf):  # the most frequent ones first
            return self._weakest(guard.parts)
        if isinstance(guard, Config):
            return Truth.REACHABLE
        if isinstance(guard, Not):
            part = self.truth(guard.part)
            return {Truth.YES: Truth.NO, Truth.NO: Truth.YES}.get(part, part)
        if isinstance(guard, AnyOf):
            return max(map(self.truth, guard.parts))
        if isinstance(guard, Loads):
            return _known(guard.path in self._assumed or self._surface.offers(guard.path) is not False)
        if isinstance(guard, TeVersion):
            return _known(COMPARE[guard.op](self._version, versions.parse(guard.version)))
        if isinstance(guard, Offers):
            offered = self._surface.offers(guard.path)
            # What the consuming package itself may have added before.
            return Truth.REACHABLE if not offered and guard.path in self._added else _known(offered)
        if isinstance(guard, Takes):
            return _known(self._surface.takes(guard.path, guard.parameter))
        if isinstance(guard, Holds):
            return Truth.REACHABLE if self._surface.changes(guard.path) else Truth.UNCLEAR
        return Truth.UNCLEAR if isinstance(guard, Unclear) else _known(guard)

    def _weakest(self, parts: Iterable[Guard]) -> Truth:
        weakest = Truth.YES
        for part in parts:
            weakest = min(weakest, self.truth(part))
            if weakest is Truth.NO:
                break
        return weakest


def _known(holds: bool | None) -> Truth:
    return Truth.UNCLEAR if holds is None else Truth.YES if holds else Truth.NO


def describe(guard: Guard, title: str = "TE") -> str:
    """Return the guard as one line of text: 'TE > 1.8.0 and config.cpu_offloading'; "" for True."""
    return "" if guard is True else _text(guard, title, top=True)


def _text(guard: Guard, title: str, *, top: bool = False) -> str:
    if isinstance(guard, bool):
        return "always" if guard else "never"
    if isinstance(guard, TeVersion):
        return f"{title} {guard.op} {guard.version}"
    if isinstance(guard, (Offers, Loads)):
        return f"has {guard.path.rstrip(':').replace(':', '.')}"
    if isinstance(guard, Takes):
        return f"{guard.path.replace(':', '.')} takes {guard.parameter}"
    if isinstance(guard, (Config, Holds)):
        return guard.text if isinstance(guard, Config) else guard.path.replace(":", ".")
    if isinstance(guard, Unclear):
        return f"{guard.text} (not understood)"
    if isinstance(guard, Not):
        text = _text(guard.part, title)
        return f"{text.removesuffix(INSTALLED)} is not installed" if text.endswith(INSTALLED) else f"not {text}"
    word = " and " if isinstance(guard, AllOf) else " or "
    joined = word.join(_text(part, title) for part in guard.parts)
    return joined if top else f"({joined})"
