"""The uses of a provider (Transformer Engine, megatron-core, torch) in a consuming package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from matrix.contract.guard import Guard, Judge, Truth

# The exceptions that a break raises, and the handlers that catch each beside those of its own name and of Exception.
CATCHES: Final[Mapping[str, tuple[str, ...]]] = {
    "ModuleNotFoundError": ("ImportError",), "ImportError": (), "AttributeError": (), "TypeError": (),
    "AssertionError": (), "RuntimeError": (), "ValueError": (),
}  # fmt: skip


class Site(NamedTuple):
    """The place of a line: path from the root of the package, 1-based line, name of the enclosing function."""

    path: str
    line: int
    function: str = ""

    def __str__(self) -> str:
        line = f"{self.path}:{self.line}"
        return f"{line} {self.function}" if self.function else line


NOWHERE: Final = Site("", 0)


class Arguments(NamedTuple):
    """The arguments of a call, by name.

    `positional` holds the name of each variable or attribute that is passed, "" for any other expression. `keywords`
    holds (name, guard): a keyword collected in a dictionary is passed only where its guard holds, too. `starred` /
    `open_keywords`: unknown arguments follow by `*` / `**`.
    """

    positional: tuple[str, ...] = ()
    keywords: tuple[tuple[str, Guard], ...] = ()
    starred: bool = False
    open_keywords: bool = False


class Use(NamedTuple):
    """One use of the provider.

    `path` is "module:attribute.attribute". `kind` is "import", "attribute", "call", "method" (a call to a method of an
    object, or a read of its private attribute; its class is known by an annotation, a constructor or isinstance),
    "override" (a method of a subclass) or "patch" (an assignment to something of the provider); `signature` is that of
    the override or the patch. `bound`: the class of the object, or super, from which the last attribute is read.
    `swallowed` lists the exceptions that the surrounding code catches and does not raise again, `effect` is the
    assignment that it makes instead ("fused_permute = None"); `fallback`: it then uses another part of the provider,
    which is a use of its own. `refused` lists the exceptions that it replaces by an error of its own. `unpacks`: the
    number of names that a call's result is unpacked into. It is a tuple for speed: a pair of releases has some hundred.
    """

    kind: str
    path: str
    site: Site
    guard: Guard  # the complete guard of the line
    here: Guard = True  # its part from the function itself
    arguments: Arguments | None = None
    bound: str = ""
    swallowed: tuple[str, ...] = ()
    effect: str = ""
    fallback: bool = False
    refused: tuple[str, ...] = ()
    signature: str = ""
    unpacks: int = 0

    @property
    def form(self) -> Use:
        """Return what decides whether it fits: no line, no guards; a keyword that is passed under a guard has False."""
        given = self.arguments
        names = tuple((name, guard is True) for name, guard in given.keywords) if given else ()
        return Use(
            self.kind, self.path, NOWHERE, True, arguments=given and given._replace(keywords=names),
            bound=self.bound, signature=self.signature, unpacks=self.unpacks,
        )  # fmt: skip


class Uses(Sequence[Use]):
    """The uses of a consuming package by call site, and their forms: each once, with the places of its uses."""

    forms: Sequence[tuple[Use, Sequence[int]]]

    def __init__(self, uses: Sequence[Use] = ()) -> None:
        self._uses = uses
        forms: dict[Use, list[int]] = {}
        for place, use in enumerate(uses):
            forms.setdefault(use.form, []).append(place)
        self.forms = list(forms.items())

    def __len__(self) -> int:
        return len(self._uses)

    def __getitem__(self, place: Any) -> Any:
        return self._uses[place]

    def reached(self, place: int, judge: Judge) -> Truth:
        """Return whether a use is reached."""
        return judge.truth(self._uses[place].guard)


@dataclass(frozen=True)
class Calls:
    """All uses of a provider in one release of a consuming package."""

    version: str
    uses: Uses
    origin: Mapping[str, str] = field(default_factory=dict)  # tag, commit, wheel
    consumer: str = "megatron-core"
    provider: str = "transformer-engine"
