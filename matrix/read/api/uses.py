"""The uses of a provider (Transformer Engine, megatron-core, torch) in a consuming package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

from matrix.read.api.guard import Guard

RAISED: Final = ("ImportError", "AttributeError", "TypeError", "AssertionError", "RuntimeError", "ValueError")
# The exceptions that a break raises, and the handlers that catch each beside those of its own name and of Exception.
CATCHES: Final[Mapping[str, tuple[str, ...]]] = {"ModuleNotFoundError": ("ImportError",), **dict.fromkeys(RAISED, ())}


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
    "override" (a method of a subclass), "patch" (an assignment to something of the provider) or "end" (the line raises
    the exception `effect` because `path` is missing, which was caught before); `signature` is that of the override or
    the patch. `bound`: the class of the object, or super, from which the last attribute is read.
    `swallowed` lists the exceptions that the surrounding code catches and does not raise again, `effect` is the
    assignment that it makes instead ("fused_permute = None"); `fallback`: it then uses another part of the provider,
    which is a use of its own. `refused` lists the exceptions that it replaces by an error of its own; an end has one if
    it raises itself. `unpacks`: the number of names that a call's result is unpacked into. A tuple, since a release has
    some hundred.
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


@dataclass(frozen=True)
class Calls:
    """All uses of a provider in one release of a consuming package, by call site.

    `fitting`: paths of further uses, which exist in every recorded release of the provider or can't be judged in any.
    """

    version: str
    uses: Sequence[Use] = ()
    origin: Mapping[str, str] = field(default_factory=dict)  # tag, commit, wheel
    consumer: str = "megatron-core"
    provider: str = "transformer-engine"
    fitting: Sequence[str] = ()

    @cached_property
    def ends(self) -> Mapping[str, Sequence[Use]]:
        """The exceptions in which missing paths end, by path; the checks of configurations come first, as in a run."""
        ends: dict[str, list[Use]] = {}
        for use in sorted(self.uses, key=lambda use: not use.site.function.endswith("__post_init__")):
            if use.kind == "end":
                ends.setdefault(use.path, []).append(use)
        return ends

    @cached_property
    def catching(self) -> frozenset[tuple[str, str]]:
        """The paths whose failure is caught, with the file: what a file catches itself is not that of another."""
        return frozenset((use.path, use.site.path) for use in self.uses if use.swallowed)

    @cached_property
    def forms(self) -> Mapping[Use, Sequence[int]]:
        """The forms of the uses, each with the places of its uses.

        A form is what decides whether a use fits: no line, no guards; a keyword that is passed under a guard has False.
        """
        forms: dict[Use, list[int]] = {}
        for index, use in enumerate(self.uses):
            if use.kind == "end":
                continue
            arguments = use.arguments
            if arguments:
                arguments = arguments._replace(keywords=tuple((name, on is True) for name, on in arguments.keywords))
            form = Use(use.kind, use.path, NOWHERE, True, True, arguments, use.bound)
            form = form._replace(signature=use.signature, unpacks=use.unpacks)
            forms.setdefault(form, []).append(index)
        return forms
