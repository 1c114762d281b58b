"""The signature of a callable, and the binding of a call to it by Python's rules, without the callable.

An example of a recorded signature: "(enabled=False,num_layers=1,*,tp_group=None,**kwargs)". A default is its literal if
that is short, "..." otherwise; it never contains a comma. A call that binds may still be wrong: the names of positional
arguments are compared with those of the parameters.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

ENDINGS = ("ing", "ed", "s")  # offloading, padded, layers: the same word as offload, pad(d), layer


@dataclass(frozen=True)
class CallSignature:
    """The names of the parameters of a callable, in order.

    `slots` take positional arguments, the first `unnamed` of them only these; `keywords` are keyword-only; `required`
    have no default; `args` and `kwargs` are the names of *args and **kwargs, "" for none.
    """

    text: str
    slots: tuple[str, ...]
    unnamed: int
    keywords: tuple[str, ...]
    required: frozenset[str]
    args: str
    kwargs: str

    @cached_property
    def named(self) -> tuple[str, ...]:
        """Return the names of the parameters but those of *args and **kwargs."""
        return self.slots + self.keywords

    @cached_property
    def accepted(self) -> frozenset[str]:
        """Return the names that can be passed by keyword."""
        return frozenset(self.named[self.unnamed :])

    @cached_property
    def defaults(self) -> Mapping[str, object]:
        """Return the defaults that are literals and not None, which often stands for the value of the release."""
        items = (item.partition("=") for item in self.text[1:-1].split(","))
        return {name: ast.literal_eval(text) for name, _, text in items if text not in ("", "...", "None")}

    def takes(self, name: str) -> bool:
        """Return whether a parameter has that name; "**": whether it takes any keyword."""
        return bool(self.kwargs) if name == "**" else name in self.named or name in (self.args, self.kwargs)


@lru_cache(maxsize=16384)
def parse_signature(text: str) -> CallSignature:
    """Read a recorded signature. Raises ValueError on anything else."""
    if not (text.startswith("(") and text.endswith(")")):
        raise ValueError(f"not a signature: {text!r}")
    slots: list[str] = []
    keywords: list[str] = []
    required: list[str] = []
    names, unnamed, args, kwargs = slots, 0, "", ""
    for item in filter(None, text[1:-1].split(",")):
        name, has_default, _ = item.partition("=")
        if name == "/":
            unnamed = len(slots)
        elif name.startswith("**"):
            kwargs = name[2:]
        elif name.startswith("*"):
            names, args = keywords, name[1:]
        else:
            names.append(name)
            if not has_default:
                required.append(name)
    return CallSignature(text, tuple(slots), unnamed, tuple(keywords), frozenset(required), args, kwargs)


def constructor_text(items: Iterable[str]) -> str:
    """Write a constructor's parameters ("name", "name=default"): a later one takes the place of one of its name."""
    slots = {item.partition("=")[0]: item for item in items if item not in ("", "self")}
    return f"({','.join(['self', *slots.values()])})"


class BindingError(NamedTuple):
    """A reason why a call does not bind. `keyword` is the wrong argument, "" if the whole call is wrong."""

    message: str  # that of Python's TypeError, after the function's name
    keyword: str = ""


class Misplacement(NamedTuple):
    """A positional argument whose name means `parameter`, and that lands on another one. `position` counts from 0."""

    message: str
    position: int
    parameter: str


def bind(
    signature: CallSignature,
    positional: int,
    keywords: Collection[str],
    *,
    bound: bool,
    starred: bool,
    open_keywords: bool,
) -> list[BindingError]:
    """Return why a call does not bind, in Python's order.

    `positional` counts the arguments before any `*args`; `keywords` are the names certainly passed. `bound`: Python
    supplies the first argument (self, cls). `starred` / `open_keywords`: further arguments of unknown number or name
    may follow, so none that they may be is
    reported missing.
    """
    supplied = positional + bound
    filled = signature.slots[signature.unnamed : supplied]
    errors: list[BindingError] = []
    for keyword in keywords:
        if keyword in filled:
            errors.append(BindingError(f"got multiple values for argument '{keyword}'", keyword))
        elif keyword not in signature.accepted and not signature.kwargs:
            errors.append(BindingError(f"got an unexpected keyword argument '{keyword}'", keyword))
    if supplied > len(signature.slots) and not signature.args:
        errors.append(BindingError(_too_many(signature, supplied, keywords)))
    lacking = signature.required.difference(signature.slots[:supplied], signature.accepted.intersection(keywords))
    for kind, names in (("positional", signature.slots), ("keyword-only", signature.keywords)) if lacking else ():
        absent = [f"'{name}'" for name in names if name in lacking]
        if absent and not open_keywords and not (starred and kind == "positional"):
            listed = " and ".join(absent) if len(absent) < 3 else f"{', '.join(absent[:-1])}, and {absent[-1]}"
            message = f"missing {len(absent)} required {kind} {_plural('argument', len(absent))}: {listed}"
            errors.append(BindingError(message))
    return errors


def _too_many(signature: CallSignature, supplied: int, keywords: Collection[str]) -> str:
    """Return Python's message for too many positional arguments."""
    keyword_only = sum(name in keywords for name in signature.keywords)
    most, least = len(signature.slots), sum(name in signature.required for name in signature.slots)
    count = str(most) if least == most else f"from {least} to {most}"
    takes = f"takes {count} positional {_plural('argument', most if least == most else 2)}"
    if not keyword_only:
        return f"{takes} but {supplied} {'was' if supplied == 1 else 'were'} given"
    passed = f"{supplied} positional {_plural('argument', supplied)}"
    return f"{takes} but {passed} (and {keyword_only} keyword-only {_plural('argument', keyword_only)}) were given"


def _plural(noun: str, count: int) -> str:
    return noun if count == 1 else f"{noun}s"


def misbound(
    signature: CallSignature, positional: Sequence[str], keywords: Collection[str], *, bound: bool
) -> list[Misplacement]:
    """Return the positional arguments whose names mean another parameter than they land on.

    `positional` are the names of the arguments, "" for an unnamed one. No keyword in `keywords` is meant: it is passed.
    """
    misplacements = []
    for position, (argument, slot) in enumerate(zip(positional, signature.slots[bound:], strict=False)):
        # An old name that is taken by keyword alone still means the slot: `f(x, new=None, *, old=None)`.
        parameter = misplaced(argument, slot, signature.slots) if argument not in ("", "self", slot) else None
        if parameter and parameter not in keywords:
            message = f"positional argument '{argument}' lands on '{slot}', and means '{parameter}'"
            misplacements.append(Misplacement(message, position, parameter))
    return misplacements


@lru_cache(maxsize=4096)
def words(name: str) -> frozenset[str]:
    """Return the words of a name, without endings: cpu_offloading_activations -> cpu, offload, activation."""
    return frozenset(_stem(word) for word in name.lower().split("_") if word)


def _stem(word: str) -> str:
    endings = (ending for ending in ENDINGS if word.endswith(ending) and len(word) - len(ending) >= 3)
    return word.removesuffix(next(endings, ""))


def fit(argument: str, parameter: str) -> float:
    """Return the share of a parameter's words that an argument's name contains, 0 to 1."""
    parameter_words = words(parameter)
    return len(words(argument) & parameter_words) / len(parameter_words) if parameter_words else 0.0


@lru_cache(maxsize=65536)
def misplaced(argument: str, landed: str, parameters: tuple[str, ...]) -> str | None:
    """Return the parameter that an argument's name means, if that is certainly not the parameter it lands on.

    It is certain if the name contains every word of the other parameter, and not every word of the one it lands on.
    A one-word parameter ("bias", "input") matches only its own name, since longer names contain such words by chance.
    A name whose words all occur in the parameter it lands on ("probs" on "merging_probs") means that one.
    """
    if words(argument) <= words(landed):
        return None
    fit_landed = fit(argument, landed)
    candidates = [
        parameter
        for parameter in parameters
        if parameter != landed
        and fit(argument, parameter) == 1.0 > fit_landed
        and (len(words(parameter)) > 1 or words(parameter) == words(argument))
    ]
    return max(candidates, key=lambda parameter: len(words(parameter)), default=None)
