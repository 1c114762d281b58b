"""How the time of each regular expression of matrix/ grows with the text: `python -m tests.growth` measures it.

An expression reads others' text: a search that fails may try each start and each end of each repeat. `degree` finds in
the expression how many of these choices the same characters leave open: 1 is linear, 2 quadratic; None is exponential.
It may find more than there is (a condition in the middle counts as met), never less. `measured` takes the input that
`degree` found, and repeats of each single loop, at n, 2n and 4n characters.
"""

from __future__ import annotations

import ast
import importlib
import re
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Final

from matrix import PACKAGE
from matrix.ground.catalog.loading import load
from matrix.ground.catalog.schema import read_toml
from matrix.ground.verdicts.text import formats

PARSER: Final[Any] = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
WHOLE, BEGINNING, SEARCH = "fullmatch", "match", "search"
METHODS: Final = {
    "compile": "", "match": BEGINNING, "fullmatch": WHOLE, "search": SEARCH, "sub": SEARCH, "subn": SEARCH,
    "split": SEARCH, "findall": SEARCH, "finditer": SEARCH,
}  # fmt: skip
CHARACTERS: Final = [*map(chr, range(128)), "\x85", "é", "٣", "\u2028", "\U0001f600"]
ANY: Final = (1 << len(CHARACTERS)) - 1
BOUNDED: Final = 4_096  # largest count of a repeat that counts as a constant
SIZES: Final = {1: 10_000, 2: 1_000}  # characters of the smallest text that is measured, by degree; else 100
SHORTEST_S: Final = 2e-4  # a shorter time is no measure
LONGEST_S: Final = 2.0  # after it no longer text is measured


def of(condition: Any) -> int:
    """Return the set of the characters that meet a condition."""
    return sum(1 << index for index, character in enumerate(CHARACTERS) if condition(character))


def word(character: str) -> bool:
    """Return whether a character is one of \\w."""
    return character.isalnum() or character == "_"


CATEGORIES: Final = {"DIGIT": of(str.isdecimal), "SPACE": of(str.isspace), "WORD": of(word)}


@dataclass(frozen=True)
class Expression:
    """An expression, where it is, and the method that searches with it."""

    place: str
    pattern: str
    flags: int
    method: str


@dataclass
class Automaton:
    """The positions of an expression, each with the characters that match there, and which follow which.

    Position 0 is the start. With `anywhere`, it is each place of the text: a search begins there.
    """

    flags: int
    anywhere: bool
    masks: list[int] = field(default_factory=lambda: [0])
    follows: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    groups: dict[int, Any] = field(default_factory=dict)
    unsure: set[int] = field(default_factory=set)  # where a match depends on what comes after its last character

    def sequence(self, items: Iterable[Any], before: frozenset[int]) -> frozenset[int]:
        """Add items after the positions `before`; return the positions after which what follows may come."""
        for kind, value in items:
            before = self.item(str(kind), value, before)
        return before

    def item(self, kind: str, value: Any, before: frozenset[int]) -> frozenset[int]:
        """Add one item."""
        if kind in ("LITERAL", "NOT_LITERAL", "ANY", "IN"):
            return self.position(self.matching(kind, value), before)
        if kind == "SUBPATTERN":
            self.groups[value[0]] = value[3]
            own, self.flags = self.flags, (self.flags | value[1]) & ~value[2]
            after, self.flags = self.sequence(value[3], before), own
            return after
        if kind == "ATOMIC_GROUP":
            return self.sequence(value, before)
        if kind == "BRANCH":
            return frozenset().union(*(self.sequence(part, before) for part in value[1]))
        if kind in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            return self.repeat(value[0], value[1], value[2], before)
        if kind == "AT":
            return self.at(str(value), before)
        if kind in ("ASSERT", "ASSERT_NOT"):
            if value[0] < 0:
                return self.behind(kind, value[1], before)
            self.unsure |= before
            self.sequence(value[1], before)  # tried, and left
        elif kind == "GROUPREF_EXISTS":
            return frozenset().union(*(self.sequence(part or (), before) for part in value[1:]))
        elif kind == "GROUPREF":  # it matches what its group matched
            self.unsure |= before
            return self.sequence(self.groups[value], before)
        return before

    def position(self, mask: int, before: frozenset[int]) -> frozenset[int]:
        """Add a position of these characters."""
        self.masks.append(mask)
        for position in before:
            self.follows[position].add(len(self.masks) - 1)
        return frozenset({len(self.masks) - 1})

    def repeat(self, least: int, most: int, body: Any, before: frozenset[int]) -> frozenset[int]:
        """Add a repeat: its first iterations, then a loop where it has no bound."""
        ends = before if least == 0 else frozenset()
        for count in range(min(least, 2)):
            before = self.sequence(body, before)
            ends = before if count + 1 == min(least, 2) else ends
        if most > BOUNDED:
            first = len(self.masks)
            after = self.sequence(body, before)
            added = {position for one in before for position in self.follows[one] if position >= first}
            for position in after - before:
                self.follows[position] |= added
            return ends | after
        for _ in range(min(most - least, 2)):
            before = self.sequence(body, before)
            ends |= before
        return ends

    def at(self, kind: str, before: frozenset[int]) -> frozenset[int]:
        """Add an anchor: a place that is met once in a text, or after each line, is one; other conditions are met."""
        if "BEGINNING" in kind and self.anywhere and before == {0}:
            return self.position(1 << 10 if self.flags & re.M and kind == "AT_BEGINNING" else 0, before)
        if kind == "AT_BOUNDARY" and self.anywhere and before == {0}:
            return self.position(ANY & ~CATEGORIES["WORD"], before)
        self.unsure |= before if "BEGINNING" not in kind else frozenset()
        return before

    def behind(self, kind: str, body: Any, before: frozenset[int]) -> frozenset[int]:
        """Add a condition on the character before: at the start of a search, it is one that the search skips."""
        one = [self.matching(str(op), value) for op, value in body if str(op) in ("LITERAL", "NOT_LITERAL", "IN")]
        if self.anywhere and before == {0} and len(one) == len(body) == 1:
            return self.position(one[0] if kind == "ASSERT" else ANY & ~one[0], before)
        return before

    def matching(self, kind: str, value: Any) -> int:
        """Return the set of the characters that match an item of one character."""
        if kind == "ANY":
            return ANY if self.flags & re.S else ANY & ~(1 << 10)
        if kind == "IN":
            mask = 0
            for op, part in value:
                mask |= self.matching(str(op), part) if str(op) != "NEGATE" else 0
            return ANY & ~mask if str(value[0][0]) == "NEGATE" else mask
        if kind == "RANGE":
            return self.either_case(of(lambda character: value[0] <= ord(character) <= value[1]))
        if kind == "CATEGORY":
            name = str(value).removeprefix("CATEGORY_")
            return ANY & ~CATEGORIES[name[4:]] if name.startswith("NOT_") else CATEGORIES[name]
        mask = self.either_case(of(lambda character: ord(character) == value))
        return ANY & ~mask if kind == "NOT_LITERAL" else mask

    def either_case(self, mask: int) -> int:
        """Return the set with the other case of its letters, where case does not count."""
        if not self.flags & re.I:
            return mask
        chosen = {CHARACTERS[index].lower() for index in range(len(CHARACTERS)) if mask >> index & 1}
        return of(lambda character: character.lower() in chosen)


@dataclass
class Growth:
    """The choices that an expression leaves open, found in its automaton; `strings` are those of nasty texts."""

    automaton: Automaton
    ends: frozenset[int]
    strings: list[tuple[str, str]] = field(default_factory=list)  # (what comes before, what repeats)

    def __post_init__(self) -> None:
        machine = self.automaton
        self.masks = [ANY, *machine.masks[1:]]
        self.edges = {state: {*machine.follows[state]} for state in range(len(self.masks))}
        if machine.anywhere:
            self.edges[0].add(0)
        # A match is found at a sure end: no choice before it is made again. What the match tries beyond begins anew.
        self.whole, sure = self.edges, self.ends - machine.unsure - {0}
        beyond = set[int]().union(*(self.edges[state] for state in sure))
        self.edges = {state: self.edges[state] - sure for state in self.edges if state not in sure}
        self.edges[0] |= beyond - sure
        self.reach = {state: self.reachable(state) for state in self.edges}
        self.loops = {
            state: frozenset(other for other in self.reach[state] if state in self.reach[other])
            for state in self.edges
            if state in self.reach[state]
        }

    def reachable(self, start: int) -> set[int]:
        """Return the states that follow a state, after one step or more."""
        found, queue = set[int](), [start]
        while queue:
            for state in self.edges[queue.pop()] - found:
                found.add(state)
                queue.append(state)
        return found

    def path(
        self,
        start: tuple[int, ...],
        end: tuple[int, ...],
        within: Sequence[frozenset[int] | None],
        edges: Mapping[int, set[int]] | None = None,
    ) -> str | None:
        """Return characters that lead from states to states, all at once and in one step or more; None without any."""
        parents: dict[tuple[int, ...], tuple[tuple[int, ...], str]] = {}
        queue, edges = [start], edges or self.edges
        for states in queue:
            steps = (edges[state] if inside is None else edges[state] & inside
                     for state, inside in zip(states, within, strict=True))  # fmt: skip
            for following in product(*steps):
                common = ANY
                for state in following:
                    common &= self.masks[state]
                if common and following not in parents:
                    # the last character is the least special: a letter rather than a control
                    parents[following] = (states, CHARACTERS[_usual(common)])
                    if following == end:
                        return _back(parents, start, end)
                    queue.append(following)
        return None

    def degree(self) -> int | None:
        """Return 1 for linear time, 2 for quadratic, and so on; None for exponential."""
        for state, loop in self.loops.items():
            for other in loop:
                if other == state or not self.masks[state] & self.masks[other]:
                    continue
                there = any({state, other} <= self.edges[before] for before in loop)
                if there and self.path((state, other), (state, state), (loop, loop)) is not None:
                    self.strings.append((self.before(state), self.path((state,), (state,), (loop,)) or ""))
                    return None
        chains: dict[int, int] = {}

        def longest(state: int) -> int:
            if state not in chains:
                chains[state] = 0
                for other in self.loops.keys() & self.reach[state] - self.loops[state]:
                    within = (self.loops[state], None, self.loops[other])
                    string = self.path((state, state, other), (state, other, other), within)
                    chains[state] = max(chains[state], longest(other) + (string is not None))
                    if string:
                        self.strings.append((self.before(state) + (self.between(state, other) or ""), string))
            return chains[state]

        return 1 + max((longest(state) for state in self.loops), default=0)

    def before(self, state: int) -> str:
        """Return characters that lead to a state."""
        return "" if state == 0 else self.path((0,), (state,), (None,), self.whole) or ""

    def between(self, state: int, other: int) -> str | None:
        """Return characters that lead from one state to another."""
        return self.path((state,), (other,), (None,), self.whole)


def _usual(mask: int) -> int:
    """Return the index of a character of a set: a letter or digit where there is one, else the first that prints."""
    indexes = [index for index in range(len(CHARACTERS)) if mask >> index & 1]
    return next(
        (index for index in indexes if CHARACTERS[index].isalnum()), indexes[len(indexes) > 1 and indexes[0] < 9]
    )


def _back(parents: dict[tuple[int, ...], tuple[tuple[int, ...], str]], start: Any, end: Any) -> str:
    text, states = "", end
    while not (text and states == start):
        states, character = parents[states]
        text = character + text
    return text


def growth(pattern: str, flags: int = 0, method: str = SEARCH) -> tuple[int | None, list[tuple[str, str]]]:
    """Return the degree of an expression, and the strings of its nasty texts."""
    parsed, degrees, strings = PARSER.parse(pattern, flags), list[int | None](), list[tuple[str, str]]()
    for anywhere in (False, True) if method == SEARCH else (False,):
        machine = Automaton(parsed.state.flags, anywhere)
        ends = machine.sequence(parsed, frozenset({0}))
        found = Growth(machine, frozenset() if method == WHOLE else ends)
        degrees.append(found.degree())
        strings += found.strings
        strings += [(found.before(state), found.path((state,), (state,), (loop,)) or "x")
                    for state, loop in found.loops.items() if state]  # fmt: skip
    return None if None in degrees else max(filter(None, degrees)), strings


def measured(expression: Expression, strings: Iterable[tuple[str, str]], size: int) -> tuple[float, float]:
    """Return the worst ratio of the times at 4n and n characters, and the seconds at 4n."""
    compiled, worst = re.compile(expression.pattern, expression.flags), (0.0, 0.0)
    for (before, repeated), end in product(dict.fromkeys(strings), ("", "\0", "!\n")):
        times = []
        for count in (size, 2 * size, 4 * size):
            text = before + repeated * (count // len(repeated)) + end
            times.append(_median(getattr(compiled, expression.method), text))
            if times[-1] > LONGEST_S:
                break
        if times[-1] > SHORTEST_S:
            worst = max(worst, (times[-1], (times[-1] / times[0]) ** (2 / max(len(times) - 1, 1))))
    return worst[1], worst[0]


def _median(search: Any, text: str) -> float:
    """Return the median of three times: of the least one, 0.0 s between two looks at the clock was seen."""
    times = list[float]()
    for _ in range(3):
        began = time.process_time()
        search(text)
        times.append(time.process_time() - began)
        if times[-1] > LONGEST_S / 10:
            return times[-1]
    return statistics.median(times)


def expressions() -> list[Expression]:
    """Return the expressions of the modules, of the entries' signatures, of the kinds of logs and of the secrets."""
    found = [expression for path in sorted(PACKAGE.rglob("*.py")) for expression in of_module(path)]
    for failure in load().failures:
        for sign in failure.signature:
            found += [Expression(failure.id, text, 0, SEARCH) for text in (sign.message, sign.log) if text]
    tables = read_toml(PACKAGE / "ground/catalog/facts/kinds.toml")
    found += [Expression("kinds.toml", text, 0, SEARCH if key != "pattern" else BEGINNING)
              for key, text in _patterns(tables)]  # fmt: skip
    found += [Expression(f"secrets.toml: {name}", text, 0, SEARCH) for name, text in formats()]
    return list({(one.pattern, one.flags, one.method): one for one in found}.values())


def _patterns(table: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield the expressions of a table of TOML, each with its key."""
    if isinstance(table, dict):
        for name, value in table.items():
            yield from _patterns(value, name)
    elif isinstance(table, list):
        for value in table:
            yield from _patterns(value, key)
    elif key in ("message", "log", "line", "pattern", "start") and isinstance(table, str):
        yield key, table


def of_module(path: Path) -> Iterator[Expression]:
    """Yield the expressions of a module: calls of re, with the method that searches with a compiled one."""
    tree, place = ast.parse(path.read_text("utf-8")), path.relative_to(PACKAGE).as_posix()
    name = ".".join(("matrix", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
    used = defaultdict(set)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in METHODS and isinstance(node.value, ast.Name):
            used[node.value.id].add(METHODS[node.attr])
    names = dict[int, str]()  # the variable of each expression that is assigned to one
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            names |= {id(part): target.id for part in ast.walk(node.value) if isinstance(target, ast.Name)}
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
            continue
        if getattr(node.func.value, "id", "") != "re" or node.func.attr not in METHODS:
            continue
        direct, module = METHODS[node.func.attr], sys.modules.get(name) or importlib.import_module(name)
        methods = {direct} if direct else used.get(names.get(id(node), "")) or {SEARCH}
        pattern, flags = _text(node.args[0], module), 0
        words = [*(word.value for word in node.keywords if word.arg == "flags"), *node.args[1:]]
        for value in words if not direct or node.keywords else ():
            with suppress(Exception):
                flags |= int(eval(compile(ast.Expression(value), place, "eval"), vars(module)))
        for method in sorted(methods) if pattern is not None else ():
            yield Expression(f"{place}:{node.lineno}", pattern or "", flags, method)


def _text(node: ast.expr, module: Any) -> str | None:
    """Return an expression's text, with an x for what is not known before it is used; None where nothing is known."""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part, module) or "x" for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return _text(node.value, module)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return (_text(node.left, module) or "x") + (_text(node.right, module) or "x")
    with suppress(Exception):
        value = eval(compile(ast.Expression(node), "", "eval"), dict(vars(module)))
        return value if isinstance(value, str) else None
    return None


def main() -> None:
    """Print the table, worst first."""
    rows = []
    for one in expressions():
        degree, strings = growth(one.pattern, one.flags, one.method)
        ratio, seconds = measured(one, strings, SIZES.get(degree or 0, 100))
        text = one.pattern if len(one.pattern) < 70 else f"{one.pattern[:67]}..."
        text = text.replace("|", "\\|").replace("\n", "\\n").replace("`", "'")
        stated = f"{degree or 'exponential'} | {ratio:.1f} | {1000 * seconds:.2f}"
        rows.append((seconds, f"| `{text}` | {one.place} | {one.method} | {stated} |"))
    heading = "| expression | where | method | degree | t(4n) / t(n) | ms at 4n |\n|---|---|---|---|---|---|"
    table = "\n".join(row for _, row in sorted(rows, reverse=True))
    sys.stdout.write(f"{len(rows)} expressions\n\n{heading}\n{table}\n")


if __name__ == "__main__":
    main()
