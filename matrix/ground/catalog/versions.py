"""Comparison of PEP 440 versions, cached: a night repeats the same comparison thousands of times."""

from __future__ import annotations

import operator
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any, Final

from packaging.specifiers import InvalidSpecifier, Specifier
from packaging.version import InvalidVersion, Version

from matrix.ground.catalog.codec import MalformedError, decode

NONE: Final = "none"  # what a machine reports that has no driver

PARTS: Final = ("before", "broken", "fixed", "any")  # of the releases around a ReleaseBoundary
SIDES: Final = "sides"  # in [night]: the releases next to each change of a ReleaseBoundary

ORDERINGS: Final[dict[str, Callable[[Version, Version], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@cache
def parse(text: str) -> Version:
    """Return the version. Raises packaging.version.InvalidVersion."""
    try:
        return Version(text)
    except ValueError as error:  # InvalidVersion, and of Python for a number of 5,000 digits
        raise InvalidVersion(str(error)) from None


def position(value: object) -> Version:
    """Return the sort key of a component's value; one without a version sorts before all others."""
    return parse(value if isinstance(value, str) else "0.dev0")


def is_version(text: str) -> bool:
    """Return whether `text` is a PEP 440 version."""
    try:
        parse(text)
    except InvalidVersion:
        return False
    return True


@dataclass(frozen=True)
class Range:
    """A comma-separated set of PEP 440 clauses, all of which must hold: ">=0.6,<0.9".

    <, <=, > and >= compare by PEP 440's total order, so 1.8.0+37280ec > 1.8.0 and 2.4.0a0 < 2.4.0, the way the
    guards in Megatron-LM do with Version objects; a packaging SpecifierSet would reject the first and hide
    pre-releases. == and != are PEP 440's: "==2.4.*", and "==1.9.0" also takes 1.9.0+e79d915.
    """

    text: str

    def __post_init__(self) -> None:
        """Raise InvalidSpecifier at construction rather than at the first use."""
        _clauses(self.text)

    @classmethod
    def from_plain(cls, value: Any) -> Range:
        """Return the range of a text. Raises MalformedError."""
        try:
            return cls(decode(str, value))
        except InvalidSpecifier as error:
            raise MalformedError(
                "not a version range",
                got=error,
                expected='PEP 440 clauses: ">=0.6,<0.9"',
                fix="join clauses with a comma; put an operator before each version",
            ) from None

    def to_plain(self) -> str:
        """Return the text."""
        return self.text

    def __contains__(self, version: str) -> bool:
        return _contains(self.text, version)


@dataclass(frozen=True)
class ReleaseBoundary:
    """The releases of a component between which a failure lies: it begins with `breaks` and ends with `fixed`.

    `works` is the earliest release that the entry is about. "" where the failure has no such side. A range of the
    entry names a part by its word (PARTS). A release includes its own pre-releases.
    """

    works: str = ""
    breaks: str = ""
    fixed: str = ""

    def __post_init__(self) -> None:
        order = [release for release in (self.works, self.breaks, self.fixed) if release]
        if order != sorted(order, key=parse):
            expected = "works before breaks before fixed"
            raise MalformedError("a boundary ends before it begins", got=" .. ".join(order), expected=expected)

    def range_of(self, part: str, where: str = "") -> str:
        """Return the range of a part: ">=0.16.0,<0.19.0.dev0". Raises MalformedError where a release is missing."""
        low, high = {
            "before": (self.works, self.breaks),
            "broken": (self.breaks, self.fixed),
            "fixed": (self.fixed, ""),
            "any": (self.works or self.breaks, ""),
        }[part]
        missing = "breaks" if part == "before" and not high else "fixed" if part == "fixed" and not low else ""
        if missing or not (low or high):
            missing = missing or "breaks"
            expected = f'{missing} = "0.19.0" in [boundary]'
            raise MalformedError(
                f"the boundary has no release {missing}", where=where or None, got=part, expected=expected
            )
        return ",".join([f">={low}"] * bool(low) + [f"<{high}.dev0"] * bool(high))

    def sides(self, parts: Collection[str], releases: Sequence[str]) -> list[str]:
        """Return the releases next to each change that the `parts` of the entry's rules state, oldest first.

        They are the last release before it, and the newest patch of the minor that begins with it.
        """
        sides = []
        for part, older, newer in (("before", "before", "broken"), ("fixed", "broken", "fixed")):
            if part in parts:
                below, above = (Range(self.range_of(side)) for side in (older, newer))
                first = [release for release in releases if release in above]
                sides += [release for release in releases if release in below][-1:]
                sides += [release for release in first if minor(release) == minor(first[0])][-1:]
        return list(dict.fromkeys(sides))


@cache
def _clauses(text: str) -> tuple[Specifier, ...]:
    clauses = tuple(Specifier(part.strip()) for part in text.split(","))
    unusable = [str(clause) for clause in clauses if clause.operator in ("~=", "===")]
    if unusable:
        raise InvalidSpecifier(f"{unusable[0]}: write it with <, <=, >, >=, == or !=")
    if not all(is_version(clause.version.removesuffix(".*")) for clause in clauses):
        raise InvalidSpecifier("a version with a number of more than 4,300 digits")
    return clauses


@cache
def _contains(text: str, version: str) -> bool:
    parsed = parse(version)
    for clause in _clauses(text):
        compare = ORDERINGS.get(clause.operator)
        holds = compare(parsed, parse(clause.version)) if compare else clause.contains(parsed, prereleases=True)
        if not holds:
            return False
    return True


@cache
def inside(text: str, ordered: tuple[str, ...]) -> frozenset[str]:
    """Return those of versions, in order, that are in the range of a text: each rule of the catalog is checked so."""
    low, high, others = 0, len(ordered), []
    for clause in _clauses(text):
        if clause.operator not in ORDERINGS:
            others.append(clause)
            continue
        search = bisect_left if clause.operator in (">=", "<") else bisect_right
        place = search(ordered, parse(clause.version), key=parse)
        low, high = (max(low, place), high) if clause.operator[0] == ">" else (low, min(high, place))
    return frozenset(
        version
        for version in ordered[low:high]
        if all(clause.contains(parse(version), prereleases=True) for clause in others)
    )


@cache
def minor(version: str) -> str:
    """Return "2.4" for "2.4.1" and for "2.4.0a0+3bcc3cddb5"."""
    release = parse(version).release
    return f"{release[0]}.{release[1] if len(release) > 1 else 0}"


def format_ranges(some: Iterable[str], known: Sequence[str]) -> str:
    """Write versions as spans of the `known` ones: "1.0.0 .. 1.8.0, 2.2.0"; unknown versions follow."""
    selected = set(some)
    runs = [[*run] for is_selected, run in groupby(known, selected.__contains__) if is_selected]
    unknown = sorted(selected - set(known), key=lambda text: (is_version(text), text))
    texts = [run[0] if len(run) == 1 else f"{run[0]} .. {run[-1]}" for run in runs]
    return ", ".join([*texts, *unknown])
