"""The conditions of a shell script: which commands run, which do not, and which may."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

# Three-valued, as rules are: a command runs, does not, or nothing in the file decides.
Truth = bool | None
_CLOSING: Final = {"[": "]", "[[": "]]"}
_NUMBERS: Final[Mapping[str, Callable[[int, int], bool]]] = {
    "-eq": lambda one, other: one == other,
    "-ne": lambda one, other: one != other,
    "-gt": lambda one, other: one > other,
    "-ge": lambda one, other: one >= other,
    "-lt": lambda one, other: one < other,
    "-le": lambda one, other: one <= other,
}
_OPEN: Final = re.compile(r"\$[\w{(@*#?]|`")  # a variable that the file does not set, or the output of a command
_PATTERN: Final = re.compile(r"[*?\[]")


def is_test(words: Sequence[str]) -> bool:
    """Return whether a command is a test alone: [ ... ], [[ ... ]] or true and false; expanded words or not."""
    return bool(words) and (words[-1] == _CLOSING.get(words[0]) or [*words] in (["true"], ["false"]))


def truth_of(words: Sequence[str]) -> Truth:
    """Return what a test with expanded words gives; None where a value is not in the file, or for any other command."""
    if not is_test(words):
        return None
    if words[0] in ("true", "false"):
        return words[0] == "true"
    operands, negated = list(words[1:-1]), False
    while operands[:1] == ["!"]:
        operands, negated = operands[1:], not negated
    truth = None if any(map(_OPEN.search, operands)) else _truth(operands)
    return truth if truth is None else truth != negated


def _truth(operands: Sequence[str]) -> Truth:
    if len(operands) == 3:
        left, operator, right = operands
        if operator in _NUMBERS and left.isdecimal() and right.isdecimal():
            return _NUMBERS[operator](int(left), int(right))
        if operator in ("=", "==", "!=") and not _PATTERN.search(right):
            return (left == right) == (operator != "!=")
    elif len(operands) == 2 and operands[0] in ("-n", "-z"):
        return bool(operands[1]) == (operands[0] == "-n")
    elif len(operands) < 2:
        return any(operands)
    return None


def both(one: Truth, other: Truth) -> Truth:
    """Return whether both hold."""
    return False if False in (one, other) else None if None in (one, other) else True


def either(one: Truth, other: Truth) -> Truth:
    """Return whether one of both holds."""
    return True if True in (one, other) else None if None in (one, other) else False


def negated(truth: Truth) -> Truth:
    """Return whether it does not hold."""
    return None if truth is None else not truth


@dataclass
class _If:
    """An `if` or `case` that is being read: the truth of its current branch, and whether an earlier one was taken."""

    branch: Truth = True
    taken: Truth = False
    in_condition: bool = True

    def start(self, branch: Truth) -> None:
        self.branch, self.in_condition = both(branch, negated(self.taken)), False

    def end_branch(self) -> None:
        self.taken = either(self.taken, self.branch)


@dataclass
class Conditions:
    """The conditions around the commands of a script, as they are read in order."""

    opened: list[_If] = field(default_factory=list)
    chain: Truth = True  # of `TEST && COMMAND` and `TEST || COMMAND`
    condition: Truth = True  # of the `if` whose condition is being read
    operator: str = ""  # before the command

    @property
    def runs(self) -> Truth:
        """Return whether the next command runs."""
        truth = self.chain
        for condition in self.opened:
            truth = both(truth, condition.branch)
        return truth

    def enter(self, keyword: str) -> None:
        """Read a keyword before a command."""
        if keyword == "if":
            self.opened.append(_If())
            self.condition = True
        elif self.opened and keyword == "elif":
            self.opened[-1].end_branch()
            self.opened[-1].branch, self.opened[-1].in_condition = True, True
            self.condition = True
        elif self.opened and keyword == "then":
            self.opened[-1].start(self.condition)
        elif self.opened and keyword == "else":
            self.opened[-1].end_branch()
            self.opened[-1].start(True)
        elif keyword == "case":  # its patterns are not compared: each branch may run
            self.opened.append(_If(branch=None, in_condition=False))
        elif self.opened and keyword in ("fi", "esac"):
            self.opened.pop()

    def leave(self, words: Sequence[str], operator: str) -> None:
        """Read a whole command, of a test its expanded words, and the operator behind it."""
        joined_by, self.operator = self.operator, operator
        if self.opened and self.opened[-1].in_condition:
            join = either if joined_by == "||" else both
            self.condition = join(self.condition, truth_of(words))
        elif operator in ("&&", "||"):
            if is_test(words):
                self.chain = both(self.chain, truth_of(words) if operator == "&&" else negated(truth_of(words)))
            elif operator == "||":  # whether the command fails is not known
                self.chain = both(self.chain, None)
        else:
            self.chain = True
