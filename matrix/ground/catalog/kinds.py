"""The kinds of failure: general signatures, and the tables from which their answers are computed. See docs/match.md."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from matrix.ground.catalog.codec import decode
from matrix.ground.catalog.loading import kept, name_of
from matrix.ground.catalog.schema import Identifier, Pattern, read_toml
from matrix.ground.catalog.stack import MCORE, short

TABLE: Final = Path(__file__).parent / "facts" / "kinds.toml"
AXIS: Final = "axis"  # the group of the axis of a bisection, for a fault in code that one varies
VERSIONS: Final = "versions"  # the group of the versions that a log names


@dataclass(frozen=True)
class Sign:
    """One way in which a log shows a kind: an exception, or a text near a fault. Every key that it has must hold.

    `exception`: class names of which one is the exception's. `function` is on its traceback; `source` is searched in
    the printed line of its last frame; `raised_in_stack`: this frame is in a package of Megatron's stack. `log` is
    searched in the log's text near faults; `anywhere`: also far from them, which takes time in every log. `of_stack`:
    no other program prints it; `any_program`: its answer is the same for every program. Other signs count only where
    the log shows the stack.
    """

    exception: tuple[str, ...] = ()
    message: Pattern | None = None
    function: str = ""
    source: Pattern | None = None
    log: Pattern | None = None
    raised_in_stack: bool = False
    anywhere: bool = False
    of_stack: bool = False
    any_program: bool = False


@dataclass(frozen=True)
class FailureKind:
    """A kind of failure.

    `facts` and `next` are texts with {groups}, of its patterns, of a [[beside]], or {versions}: those that the log
    names; without the group, no text. `first`: only its first line in a log is a cause. `rank`: where the log shows a
    kind of its topic with a lower one, that is the cause, and this its consequence; 3: where it shows any other kind.
    """

    id: Identifier
    title: str
    topic: str
    means: str
    sign: tuple[Sign, ...]
    facts: tuple[str, ...] = ()
    next: tuple[str, ...] = ()
    first: bool = False
    rank: int = 0


@dataclass(frozen=True)
class Distribution:
    """A package of the stack, or one that its modules import.

    `modules` are its import names, or their dotted beginnings; `install` is a line for a shell. `stack` is what shows
    that Megatron's stack ran: "names" a fault that is about one of its modules, "frames" also a frame in them. `axis`:
    the component that `megatrix bisect` varies for a fault in its code, "" for none.
    """

    title: str
    modules: tuple[str, ...]
    install: str
    source: str
    stack: str = ""
    note: str = ""
    axis: str = ""


@dataclass(frozen=True)
class Clue:
    """Lines, anywhere in a log, that state why an error of it was raised: `error` is searched in the error's text."""

    line: Pattern
    error: Pattern
    source: str


@dataclass(frozen=True)
class Beside:
    """Lines that state what the answers to kinds use, in its named group: the package that was built, its compiler.

    Of a group the earliest row counts that the log shows, at its first line. `of_stack`: no other program prints it.
    """

    line: Pattern
    source: str
    of_stack: bool = False

    @property
    def group(self) -> str:
        """Return the name of its group."""
        return next(iter(re.compile(self.line).groupindex), "")


@dataclass(frozen=True)
class NameFact:
    """What a text that a `group` captured means: the name of a library, symbol or header, or a version.

    `pattern` is matched from its start.
    """

    group: str
    pattern: Pattern
    means: str
    source: str
    install: str = ""


@dataclass(frozen=True)
class KindTable:
    """The tables; tests/unit/ground/catalog/test_kinds.py checks what they state."""

    kind: tuple[FailureKind, ...]
    package: tuple[Distribution, ...]
    fact: tuple[NameFact, ...]
    clue: tuple[Clue, ...] = ()
    beside: tuple[Beside, ...] = ()

    def axis_of(self, file: str) -> str:
        """Return the axis of a bisection for a fault in a source file of the stack, "" where none varies it."""
        rows = [(len(name), row) for row in self.package for name in row.modules if _folder(name) in f"/{file}"]
        row = max(rows, key=lambda one: one[0], default=(0, None))[1]
        return row.axis if row else short(MCORE)  # a script of a clone of Megatron-LM

    def package_of(self, module: str) -> Distribution | None:
        """Return the package of a dotted module name, by its longest beginning."""
        rows = [(len(name), row) for row in self.package for name in row.modules if f"{module}.".startswith(f"{name}.")]
        return max(rows, key=lambda one: one[0], default=(0, None))[1]


def _folder(module: str) -> str:
    return f"/{module.replace('.', '/')}/"


def groups_in(text: str) -> set[str]:
    """Return the names of the {groups} in a text."""
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


def filled(texts: Iterable[str], groups: dict[str, str]) -> list[str]:
    """Return the texts whose groups are all there, with their values."""
    return [text.format_map(groups) for text in texts if groups_in(text) <= set(groups)]


@cache
def kind_table() -> KindTable:
    """Return the tables. Raises MatrixError where they are damaged."""
    return kept(KindTable, name_of(TABLE), lambda: [TABLE], lambda: decode(KindTable, read_toml(TABLE), str(TABLE)))
