"""The signature of a callable, and Python's rules for binding a call to it, without the callable.

A signature is recorded as text, e.g. "(enabled=False,num_layers=1,*,tp_group=None,**kwargs)". A default is its literal
if that is short, "..." otherwise; it never contains a comma.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

LONGEST_DEFAULT = 16  # characters; longer defaults do not matter for binding


class Parameter(NamedTuple):
    """One parameter. `kind` is "positional" (only), "either", "keyword" (only), "args" or "kwargs".

    It is a tuple for speed: one pair of releases creates some thousand of them within milliseconds.
    """

    name: str
    kind: str
    required: bool


@dataclass(frozen=True)
class BindingError:
    """A reason why a call does not bind. `keyword` is the wrong argument, "" if the whole call is wrong."""

    message: str  # that of Python's TypeError, after the function's name
    keyword: str = ""


@dataclass(frozen=True)
class Binding:
    """The result of binding a call.

    `problems` are in Python's order; `landed` holds (position, parameter) for each positional argument of the call
    that has a parameter.
    """

    problems: tuple[BindingError, ...]
    landed: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class CallSignature:
    """The parameters of a callable, in order, as text and parsed."""

    text: str
    parameters: tuple[Parameter, ...]

    @cached_property
    def names(self) -> frozenset[str]:
        """Return the names of all parameters."""
        return frozenset(parameter.name for parameter in self.parameters)

    @cached_property
    def named(self) -> tuple[str, ...]:
        """Return the names of the parameters but those of *args and **kwargs."""
        return tuple(parameter.name for parameter in self.parameters if parameter.kind not in ("args", "kwargs"))

    @cached_property
    def accepted(self) -> frozenset[str]:
        """Return the names that can be passed by keyword."""
        return frozenset(parameter.name for parameter in self.parameters if parameter.kind in ("either", "keyword"))

    @cached_property
    def kinds(self) -> frozenset[str]:
        """Return the kinds of the parameters."""
        return frozenset(parameter.kind for parameter in self.parameters)

    @cached_property
    def required(self) -> frozenset[str]:
        """Return the names of the parameters without a default."""
        return frozenset(parameter.name for parameter in self.parameters if parameter.required)

    @cached_property
    def slots(self) -> tuple[Parameter, ...]:
        """Return the parameters that take positional arguments."""
        return tuple(parameter for parameter in self.parameters if parameter.kind in ("positional", "either"))

    def bind(
        self, positional: int, keywords: Sequence[str], *, bound: bool, starred: bool, open_keywords: bool
    ) -> Binding:
        """Bind a call.

        `positional` counts the arguments before any `*args`; `keywords` are the names certainly passed. `bound`:
        Python supplies the first argument (self, cls). `starred` / `open_keywords`: further arguments of unknown
        number or name may follow, so none is reported missing.
        """
        slots = self.slots
        supplied = positional + bound
        landed = tuple((place - bound, slot.name) for place, slot in enumerate(slots[:supplied]) if place >= bound)
        filled = {slot.name for slot in slots[:supplied] if slot.kind == "either"}
        problems: list[BindingError] = []
        for keyword in keywords:
            if keyword in filled:
                problems.append(BindingError(f"got multiple values for argument '{keyword}'", keyword))
            elif keyword not in self.accepted and "kwargs" not in self.kinds:
                problems.append(BindingError(f"got an unexpected keyword argument '{keyword}'", keyword))
        if supplied > len(slots) and "args" not in self.kinds:
            named = sum(p.kind == "keyword" and p.name in keywords for p in self.parameters)
            problems.append(BindingError(_too_many(slots, supplied, named)))
        if not (open_keywords or self.required <= filled.union(keywords)):
            problems += self._missing(slots, supplied, set(keywords), starred=starred)
        return Binding(tuple(problems), landed)

    def takes(self, name: str) -> bool:
        """Return whether a parameter has that name."""
        return name in self.names

    def _missing(
        self, slots: Sequence[Parameter], supplied: int, keywords: set[str], *, starred: bool
    ) -> list[BindingError]:
        by_name = {slot.name for slot in slots if slot.kind == "either"} & keywords
        positional = [] if starred else [p.name for p in slots[supplied:] if p.required and p.name not in by_name]
        named = [p.name for p in self.parameters if p.kind == "keyword" and p.required and p.name not in keywords]
        return [
            BindingError(f"missing {len(names)} required {kind} argument{'s' * (len(names) > 1)}: {_listed(names)}")
            for kind, names in (("positional", positional), ("keyword-only", named))
            if names
        ]


def _too_many(slots: Sequence[Parameter], supplied: int, named: int) -> str:
    """Return Python's message for too many positional arguments; `named` counts the keyword-only arguments."""
    most, least = len(slots), sum(slot.required for slot in slots)
    count, plural = (f"{most}", most != 1) if least == most else (f"from {least} to {most}", True)
    passed = f"{supplied}"
    if named:
        passed += f" positional argument{'s' * (supplied != 1)} (and {named} keyword-only argument{'s' * (named != 1)})"
    were = "was" if supplied == 1 and not named else "were"
    return f"takes {count} positional argument{'s' * plural} but {passed} {were} given"


def _listed(names: Sequence[str]) -> str:
    quoted = [f"'{name}'" for name in names]
    if len(quoted) < 3:
        return " and ".join(quoted)
    return f"{', '.join(quoted[:-1])}, and {quoted[-1]}"


@lru_cache(maxsize=16384)
def parse_signature(text: str) -> CallSignature:
    """Read a recorded signature. Raises ValueError on anything else."""
    if not (text.startswith("(") and text.endswith(")")):
        raise ValueError(f"not a signature: {text!r}")
    parameters: list[Parameter] = []
    kind = "either"
    for item in filter(None, text[1:-1].split(",")):
        if item == "/":
            parameters = [Parameter(p.name, "positional", p.required) for p in parameters]
        elif item == "*":
            kind = "keyword"
        elif item.startswith("**"):
            parameters.append(Parameter(item[2:], "kwargs", False))
        elif item.startswith("*"):
            parameters.append(Parameter(item[1:], "args", False))
            kind = "keyword"
        else:
            name, has_default, _ = item.partition("=")
            parameters.append(Parameter(name, kind, not has_default))
    return CallSignature(text, tuple(parameters))


def signature_text(arguments: ast.arguments) -> str:
    """Write the parameters of a function definition as text."""
    slots = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(slots) - len(arguments.defaults)) + [default_text(node) for node in arguments.defaults]
    items = [_item(slot.arg, default) for slot, default in zip(slots, defaults, strict=True)]
    if arguments.posonlyargs:
        items.insert(len(arguments.posonlyargs), "/")
    if arguments.vararg:
        items.append(f"*{arguments.vararg.arg}")
    elif arguments.kwonlyargs:
        items.append("*")
    for slot, node in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        items.append(_item(slot.arg, None if node is None else default_text(node)))
    if arguments.kwarg:
        items.append(f"**{arguments.kwarg.arg}")
    return f"({','.join(items)})"


def default_text(node: ast.expr) -> str:
    """Return a short literal default as it is, "..." for anything else."""
    if isinstance(node, ast.Constant) or (isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant)):
        text = ast.unparse(node)
        if len(text) <= LONGEST_DEFAULT and "," not in text:
            return text
    return "..."


def _item(name: str, default: str | None) -> str:
    return name if default is None else f"{name}={default}"
