"""How each failure stands in each stack of listed versions, as tables that a page looks up. Pure.

The rules of a failure split the values of an axis into few classes. `judge_failure` judges one stack of each
combination of classes, so that the tables give the answer of `megatrix check`, and a page computes nothing itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any, Final, Generic, TypeVar

from matrix.ask.check import user_stack as stacks
from matrix.ask.check.calls import CallsAnswer, calls_of, deciding, joined
from matrix.ask.check.remedies import calls_part
from matrix.ask.check.rulings import (
    KNOWN_BREAK,
    ORDER,
    BreakingCalls,
    FailureInStack,
    Standing,
    clashes,
    judge_failure,
    undecided_driver,
)
from matrix.ask.check.transition import effect_of
from matrix.ask.check.user_stack import UserStack, unknown_contents
from matrix.ground.catalog.failure import Expectation, Failure
from matrix.ground.catalog.model import Catalog
from matrix.ground.catalog.stack import (
    ABSENT,
    BASE,
    CALL_PAIRS,
    DRIVER,
    GPUS,
    MCORE,
    PYTHON,
    SM,
    TE,
    TORCH,
    UNKNOWN,
    WRITER,
    Clause,
    component_title,
)
from matrix.ground.catalog.versions import is_version, parse

# The axes of a choice, with the components that each fixes. The value of "base" is a container or a torch.
CHOSEN: Final = {
    "base": (BASE, TORCH, PYTHON, GPUS, "cuda", "cudnn", "nccl", "flash-attn"),
    "te": (TE,),
    "mcore": (MCORE,),
    "driver": (DRIVER,),
    "sm": (SM,),
}
_AXIS: Final = {component: axis for axis, fixed in CHOSEN.items() for component in fixed}
# The axes of the stack that wrote the checkpoints which another one reads, with the components that each states.
WRITTEN: Final = {
    f"from {axis}": tuple(writer for writer, component in WRITER.items() if component in fixed)
    for axis, fixed in CHOSEN.items()
}
T = TypeVar("T")
Choice = Mapping[str, str]  # axis of CHOSEN -> word as in `megatrix check "WORD WORD"`; left out: not named


@dataclass(frozen=True)
class Table(Generic[T]):
    """Answers by choice. `classes`: by axis, the class of each value; `answers`: row-major over the axes' classes."""

    classes: Mapping[str, tuple[int, ...]]
    answers: tuple[T, ...]

    def at(self, places: Mapping[str, int]) -> T:
        """Return the answer for the places of the values on each axis."""
        found = 0
        for axis, classes in self.classes.items():
            found = found * self._sizes[axis] + classes[places[axis]]
        return self.answers[found]

    @cached_property
    def _sizes(self) -> Mapping[str, int]:
        return {axis: max(classes) + 1 for axis, classes in self.classes.items()}


@dataclass(frozen=True)
class StackAnswer:
    """What `megatrix check` answers of a choice: the texts of clashes and of what is not known, failures, calls."""

    clashes: Sequence[str]
    failures: Sequence[FailureInStack]
    calls: Sequence[BreakingCalls]
    unread: Sequence[str]

    @property
    def certain(self) -> list[FailureInStack]:
        """Return the failures that break for certain."""
        return [result for result in self.failures if result.certain]

    @property
    def breaks(self) -> bool:
        """Return whether something breaks for certain."""
        return bool(self.clashes or self.certain or any(call.certain for call in self.calls))


@dataclass(frozen=True)
class StackTable:
    """The answers for every choice of listed values.

    `values`: by axis, the words that can be chosen, "" (not named) first. `brought`: the words for other axes that a
    container's word implies. `clashes` are texts, of parts that exclude each other and of drivers. `breaking` are,
    for each package that is called, the calls that the catalog lacks, with the reason why a pair can't be judged.
    `undecided` are texts of what is not known: the contents of an image, and whether a driver runs it. `resuming`
    are, by failure, what is expected of a stack that reads the checkpoints of another one.
    """

    values: Mapping[str, tuple[str, ...]]
    brought: Mapping[str, Choice]
    failures: tuple[Table[FailureInStack], ...]
    clashes: tuple[Table[str], ...]
    breaking: tuple[Table[CallsAnswer], ...]
    undecided: tuple[Table[str], ...]
    resuming: Mapping[str, Table[Expectation]]

    def places(self, choice: Choice) -> dict[str, int]:
        """Return the place of each axis's value. Raises ValueError for a word that is not listed."""
        brought = self.brought.get(choice.get("base", ""), {})
        return {axis: words.index(choice.get(axis) or brought.get(axis, "")) for axis, words in self.values.items()}

    def standing(self, choice: Choice) -> list[FailureInStack]:
        """Return how each failure stands, in the catalog's order."""
        places = self.places(choice)
        return [table.at(places) for table in self.failures]

    def calls(self, choice: Choice) -> CallsAnswer:
        """Return the calls that break, and by package why calls into it can't be judged."""
        places = self.places(choice)
        return joined(table.at(places) for table in self.breaking)

    def clashing(self, choice: Choice) -> list[str]:
        """Return why parts of the stack exclude each other."""
        places = self.places(choice)
        return [text for table in self.clashes if (text := table.at(places))]

    def unread(self, choice: Choice) -> list[str]:
        """Return what is not known of the stack; why calls can't be judged counts where all else is known."""
        places = self.places(choice)
        texts = [text for table in self.undecided if (text := table.at(places))]
        return texts or [*self.calls(choice)[1].values()]

    def answer(self, choice: Choice) -> StackAnswer:
        """Return all that is answered of a choice."""
        return StackAnswer(self.clashing(choice), self.standing(choice), self.calls(choice)[0], self.unread(choice))

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; `texts` and `findings` hold each once, and answers name its places."""
        texts: dict[str, int] = {"": 0}
        findings: dict[tuple[int, int], int] = {}

        def place(text: str) -> int:
            return texts.setdefault(text, len(texts))

        def answer(one: FailureInStack) -> list[Any]:
            texts_ = map(place, (one.reason, one.needs, one.hidden_by))
            flags = [place(each.text) for each in one.workarounds]
            return [ORDER.index(one.standing), int(one.certain), *texts_, flags]

        def calls(answer: CallsAnswer) -> list[Any]:
            problems = {calls_part(component_title(package)): problem for package, problem in answer[1].items()}
            return [place("; ".join(problems.values())), [group(one) for one in answer[0]], [*map(place, problems)]]

        def group(one: BreakingCalls) -> list[Any]:
            flags = [place(each) for each in one.flags]
            rows = ((place(f"{each.error}: {each.message}"), place(str(each.call_site))) for each in one.findings)
            found = [findings.setdefault(row, len(findings)) for row in rows]
            return [ORDER.index(one.standing), int(one.certain), place(one.into), place(one.needs), flags, found]

        return {
            "values": {axis: list(words) for axis, words in self.values.items()},
            "brought": {word: dict(choice) for word, choice in self.brought.items()},
            "standings": [one.value for one in Standing],
            "breaks": [ORDER.index(one) for one in KNOWN_BREAK],
            "moves": [[effect_of(one, other) or "" for other in Standing] for one in Standing],
            "failures": [_table(one, answer) for one in self.failures],
            "clashes": [_table(one, place) for one in self.clashes],
            "pairs": [[_AXIS[pair.consumer], _AXIS[pair.provider]] for pair in CALL_PAIRS],
            "calls": [_table(table, calls) for table in self.breaking],
            "undecided": [_table(one, place) for one in self.undecided],
            "resuming": {failure: _table(table, list(Expectation).index) for failure, table in self.resuming.items()},
            "findings": [list(one) for one in findings],
            "texts": list(texts),
        }


def _table(table: Table[T], encode: Callable[[T], Any]) -> dict[str, Any]:
    """Return a table with each answer once: `cells` are places in `answers`."""
    once: dict[str, int] = {}  # an answer as JSON -> its place
    cells = [once.setdefault(json.dumps(encode(one)), len(once)) for one in table.answers]
    return {
        "classes": {axis: list(classes) for axis, classes in table.classes.items()},
        "cells": cells,
        "answers": list(map(json.loads, once)),
    }


def build_table(catalog: Catalog) -> StackTable:
    """Return the answers for every choice of the versions that the catalog lists."""
    parts = {
        axis: {word: stacks.build(catalog, stacks.parse_text(catalog, word) if word else ()) for word in words}
        for axis, words in {axis: ("", *listed(catalog, axis)) for axis in CHOSEN}.items()
    }
    spelled = {_meant(word): word for words in parts.values() for word in words}
    releases = [
        Clause(bounds={**one.requires, **({PYTHON: one.requires_python} if one.requires_python else {})})
        for one in catalog.megatron_core
    ]
    excluded = _classes(parts, [*(one.when for one in catalog.exclusions), *releases])
    each = {axis: tuple(range(len(words))) for axis, words in parts.items()}
    one = {axis: (0,) * len(words) for axis, words in parts.items()}

    def clash(stack: UserStack) -> str:
        return "; ".join(each.text for each in clashes(catalog, stack))

    return StackTable(
        {axis: tuple(words) for axis, words in parts.items()},
        {
            word: {axis: spelled[_meant(each)] for axis, each in brought.items()}
            for word, part in parts["base"].items()
            if (brought := _brought(part))
        },
        tuple(
            _tabled(
                parts,
                _classes(parts, _clauses(catalog, failure)),
                lambda stack, failure=failure: judge_failure(catalog, stack, failure, (), {}),  # type: ignore[misc]
            )
            for failure in catalog.failures
        ),
        (
            _tabled(parts, {**excluded, "base": each["base"], "mcore": each["mcore"]}, clash),
            _tabled(parts, {**one, "base": each["base"], "driver": each["driver"]}, clash),
        ),
        _call_tables(catalog, parts, each),
        _undecided_tables(catalog, parts, each, one),
        _resuming_tables(catalog, parts),
    )


def _resuming_tables(catalog: Catalog, parts: Mapping[str, Mapping[str, UserStack]]) -> dict[str, Table[Expectation]]:
    """Return, by failure of a checkpoint that another stack writes, what is expected of reader and writer."""
    written = {
        axis: {word: _as_writer(stack, axis) for word, stack in parts[axis.removeprefix("from ")].items()}
        for axis in WRITTEN
    }
    return {
        str(failure.id): _tabled(
            {**parts, **written},
            {**_classes(parts, clauses), **_classes(written, clauses, WRITTEN)},
            lambda stack, failure=failure: failure.expectation(stack.stack),  # type: ignore[misc]
            {**CHOSEN, **WRITTEN},
        )
        for failure in catalog.failures
        if WRITER.keys() & set(failure.axes)
        for clauses in [_clauses(catalog, failure)]
    }


def _as_writer(stack: UserStack, axis: str) -> UserStack:
    return replace(stack, stack=stack.stack.with_({writer: stack.stack[WRITER[writer]] for writer in WRITTEN[axis]}))


def _undecided_tables(
    catalog: Catalog,
    parts: Mapping[str, Mapping[str, UserStack]],
    each: Mapping[str, tuple[int, ...]],
    one: Mapping[str, tuple[int, ...]],
) -> tuple[Table[str], ...]:
    """Return what is not known of a container's contents and driver; in `one`, all values are of one class."""

    def contents(stack: UserStack) -> str:
        image = catalog.container_in(stack.stack)
        missing = [name for name in (TORCH, TE) if stack.stack[name] is UNKNOWN]
        return unknown_contents(image.id, missing) if image and missing else ""

    def driver(stack: UserStack) -> str:
        return "; ".join(item.text for item in undecided_driver(catalog, stack))

    return (
        _tabled(parts, {**one, "base": each["base"], "te": tuple(bool(word) for word in parts["te"])}, contents),
        _tabled(parts, {**one, "base": each["base"], "driver": each["driver"]}, driver),
    )


def _call_tables(
    catalog: Catalog, parts: Mapping[str, Mapping[str, UserStack]], each: Mapping[str, tuple[int, ...]]
) -> tuple[Table[CallsAnswer], ...]:
    """Return the calls of each pair of packages by the axes of both: in `each`, every value is a class."""
    return tuple(
        _tabled(
            parts,
            {
                **_classes(parts, deciding(pair, catalog)),
                **{axis: each[axis] for axis in map(_AXIS.__getitem__, pair[:2])},
            },
            lambda stack, pair=pair: calls_of(pair, catalog, stack.stack, ()),  # type: ignore[misc]
        )
        for pair in CALL_PAIRS
    )


def listed(catalog: Catalog, axis: str) -> list[str]:
    """Return the values of an axis that the catalog names, in order, as words of `megatrix check`.

    Of the spellings of a version (1.10 and 1.10.0) it is that of the release.
    """
    (component, *fixed) = CHOSEN[axis]
    if fixed:
        images = sorted(base.id for base in catalog.containers)
        return [*(f"base={id}" for id in images), *(f"torch={torch}" for torch in stacks.recorded(catalog, TORCH))]
    every = (*(catalog.stated(component) if component != SM else ()), *stacks.recorded(catalog, component))
    spelled = {parse(version): version for version in every if is_version(version)}
    absent = [f"{axis}={ABSENT}"] if component == TE else []
    return [*absent, *(f"{axis}={spelled[version]}" for version in sorted(spelled))]


def _meant(word: str) -> tuple[str, object]:
    axis, _, version = word.partition("=")
    return axis, parse(version) if is_version(version) else version


def _brought(stack: UserStack) -> dict[str, str]:
    """Return the words for the axes that a container implies."""
    named = {axis: stack.stack.version(CHOSEN[axis][0]) for axis in ("te", "mcore")}
    return {axis: f"{axis}={version}" for axis, version in named.items() if version}


def _clauses(catalog: Catalog, failure: Failure) -> list[Clause]:
    """Return every clause that decides how a failure stands: its own, and those of failures that hide it."""
    hiding = [catalog.failure(one.by) for one in failure.masked]
    rules = [rule for one in (failure, *hiding) for rule in (*one.affected, *one.works) if not rule.cases]
    return [*rules, *failure.reached_by, *(one.when for one in failure.masked)]


def _classes(
    parts: Mapping[str, Mapping[str, UserStack]],
    clauses: Sequence[Clause],
    fixing: Mapping[str, Sequence[str]] = CHOSEN,
) -> dict[str, tuple[int, ...]]:
    """Return, by axis, the class of each value: values of a class satisfy the same conditions of all clauses."""
    found = {}
    for axis, words in parts.items():
        seen: dict[object, int] = {}
        profiles = [_profile(stack, fixing[axis], clauses) for stack in words.values()]
        found[axis] = tuple(seen.setdefault(profile, len(seen)) for profile in profiles)
    return found


def _profile(stack: UserStack, components: Collection[str], clauses: Sequence[Clause]) -> object:
    bounded = {component for clause in clauses for component in clause.components}
    values = {name: stack.stack[name] for name in components}
    held = [
        tuple(isinstance(value := values[name], str) and value in bound for name, bound in conditions)
        for conditions in ([pair for pair in clause.conditions if pair[0] in components] for clause in clauses)
    ]
    # Without a container a torch stands for itself: its image is as decided as that of a container.
    absences = [
        (values[name] is UNKNOWN, values[name] is ABSENT and name != BASE) for name in components if name in bounded
    ]
    return tuple(held), tuple(absences)


def _tabled(
    parts: Mapping[str, Mapping[str, UserStack]],
    classes: Mapping[str, tuple[int, ...]],
    judge: Callable[[UserStack], T],
    fixing: Mapping[str, Sequence[str]] = CHOSEN,
) -> Table[T]:
    """Return the table of a judgement; axes with one class are left out."""
    first = [
        [list(parts[axis].values())[classes[axis].index(one)] for one in range(max(classes[axis]) + 1)]
        for axis in fixing
    ]
    answers = tuple(judge(_combined(dict(zip(fixing, each, strict=True)), fixing)) for each in product(*first))
    return Table({axis: classes[axis] for axis in fixing if max(classes[axis])}, answers)


def _combined(parts: Mapping[str, UserStack], fixing: Mapping[str, Sequence[str]]) -> UserStack:
    """Return the stack with each part's own components."""
    values = {name: parts[axis].stack[name] for axis, own in fixing.items() for name in own}
    return replace(parts["base"], stack=parts["base"].stack.with_(values))
