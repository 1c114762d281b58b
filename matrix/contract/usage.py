"""What a consuming package (megatron.core, megatron.training) asks of Transformer Engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from matrix.contract.guard import Guard


@dataclass(frozen=True)
class Site:
    """Where a line stands: path from the root of the package, 1-based line, name of the enclosing function."""

    path: str
    line: int
    function: str = ""

    def __str__(self) -> str:
        where = f"{self.path}:{self.line}"
        return f"{where} {self.function}" if self.function else where


@dataclass(frozen=True)
class Arguments:
    """The arguments of a call, by name.

    `positional` holds for each the name of the variable or attribute that is passed, "" where it is an expression.
    `keywords` holds (name, guard): a keyword collected in a dictionary is passed only where its guard holds too.
    `starred` / `open_keywords`: more follow by `*` / `**` of which nothing is known.
    """

    positional: tuple[str, ...] = ()
    keywords: tuple[tuple[str, Guard], ...] = ()
    starred: bool = False
    open_keywords: bool = False


@dataclass(frozen=True)
class Use:
    """One use of Transformer Engine.

    `path` is "module:attribute.attribute". `kind` is "import", "attribute" or "call". `bound`: the last attribute is
    taken from an instance or super(). `swallowed` names the exceptions that the surrounding code catches and does not
    raise again, and `effect` says what it does instead ("fused_permute = None"); `fallback`: it then uses something
    else of Transformer Engine, which is a use of its own. `refused` names those it answers with an error of its own,
    as an assert would.
    """

    kind: str
    path: str
    site: Site
    guard: Guard  # all that is known of when the line is reached
    here: Guard = True  # the part of it that stands in the function itself
    arguments: Arguments | None = None
    bound: bool = False
    swallowed: tuple[str, ...] = ()
    effect: str = ""
    fallback: bool = False
    refused: tuple[str, ...] = ()


@dataclass(frozen=True)
class Calls:
    """Everything one release of a consuming package asks of Transformer Engine."""

    version: str
    uses: tuple[Use, ...]
    origin: Mapping[str, str] = field(default_factory=dict)  # tag, commit, wheel
