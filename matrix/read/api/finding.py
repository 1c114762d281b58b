"""A break of the contract between a consuming package and a provider's release, and the ways in which a use breaks."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import takewhile
from typing import Any, Final, NamedTuple, Protocol

from matrix.read.api.api import Absent, OwnCall, ResolvedPath, Surface
from matrix.read.api.binding import BindingError, CallSignature, Misplacement, bind, misbound, parse_signature
from matrix.read.api.guard import (
    Guard,
    Judge,
    Truth,
    all_of,
    any_of,
    implies,
    negate,
)
from matrix.read.api.provider import CATCHES, MEGATRON_CORE, PROVIDERS, TRANSFORMER_ENGINE, Arguments, Site, Use

DROPPING = ",**extra)"  # the constructor of a dataclass of pydantic; see matrix.read.api.definition
REPLACING = ("override", "patch")
SIDES = ("consumer", "provider", "packages")
OPTIONAL = ("masked", "lost", "implausible", "end")  # in JSON only where they hold


class FindingKind(str, Enum):
    """The kind of a break; MEANING describes each."""

    DEFINITE = "definite"
    POSSIBLE = "possible"
    MISBOUND = "misbound"
    OVERRIDE = "override"
    IGNORED = "ignored"
    CHANGED = "changed"
    SILENTLY_OFF = "silently-off"


BREAKING: Final = (FindingKind.DEFINITE, FindingKind.MISBOUND)  # what a gate refuses
MEANING: Final = {
    FindingKind.DEFINITE: "the line raises the exception whenever it is reached",
    FindingKind.MISBOUND: "no exception: an argument binds to another parameter than its caller means",
    FindingKind.OVERRIDE: "the provider calls what this code replaces with arguments that the replacement refuses",
    FindingKind.IGNORED: "no exception: a dataclass drops a keyword argument that other releases take",
    FindingKind.CHANGED: "no exception: an argument that is left out has another default than in the tested release",
    FindingKind.POSSIBLE: "it depends on a guard or a definition that was not understood",
    FindingKind.SILENTLY_OFF: "the exception is caught, and a feature is silently off or replaced",
}


class CaughtEnd(NamedTuple):
    """The exception in which a caught one ends, and the line that raises it."""

    exception: str
    site: Site

    def __str__(self) -> str:
        return f"{self.exception} at {self.site}"


@dataclass(frozen=True)
class Finding:
    """One break of the contract between a consuming package and a release of a provider."""

    consumer: str  # versions
    provider: str
    callee: str  # dotted path
    call_site: Site
    guard: str  # under which the line is reached, "" for always
    kind: FindingKind
    message: str  # Python's message, or a description where Python raises nothing
    signature: str = ""  # of the callee, "" where it has none
    exception: str = ""  # that Python raises, "" for a misbinding
    masked: str = ""  # the break of the pair that raises before it, or what no release has; "" for neither
    lost: str = ""  # the feature that is silently off, "" where that is unknown
    implausible: str = ""  # why nobody runs this pair of releases, "" for a plausible one
    end: CaughtEnd | None = None  # in which it ends where `exception` is caught, None where nothing raises
    packages: tuple[str, str] = (MEGATRON_CORE.package, TRANSFORMER_ENGINE.package)  # consumer, provider

    @property
    def error(self) -> str:
        """The exception that ends it: Python's own, or a Misbound where Python raises nothing."""
        return self.end.exception if self.end else self.exception or "Misbound"

    @property
    def line(self) -> Site:
        """The line that raises: the end, or the call site itself."""
        return self.end.site if self.end else self.call_site

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        consumer, provider = self.packages
        sides = {PROVIDERS[consumer].key if consumer in PROVIDERS else "consumer": self.consumer}
        sides[PROVIDERS[provider].key] = self.provider
        facts = {name: value for name, value in vars(self).items() if name not in SIDES}
        record = sides | {name: value for name, value in facts.items() if value or name not in OPTIONAL}
        record |= {"end": str(self.end)} if self.end else {}
        return record | {"call_site": str(self.call_site), "kind": self.kind.value}


class OtherReleases(Protocol):
    """The other releases of a provider."""

    def offered(self, path: str) -> bool:
        """Return whether any release has a path."""

    def lacked(self, path: str) -> bool:
        """Return whether every release lacks a path."""

    def fitted(self, use: Use) -> bool:
        """Return whether an override or a patch fits any release."""

    def taken(self, path: str, parameter: str) -> bool:
        """Return whether the callable at `path` has that parameter in any release."""

    def placed(self, path: str, position: int, parameter: str) -> bool:
        """Return whether a positional argument of the callable at `path` lands on that parameter in any release."""

    def had_before(self, path: str, version: str) -> bool:
        """Return whether a release older than `version` has a path."""


@dataclass(frozen=True)
class Break:
    """One way a use fails; `exception` is "" for a misbinding."""

    message: str
    exception: str
    truth: Truth = Truth.YES
    guard: Guard = True  # beyond the use's own
    swallowed: bool = False
    signature: str = ""
    kind: FindingKind | None = None  # if it does not follow from the others

    @property
    def is_sure(self) -> bool:
        """Return whether the code after it never runs."""
        is_raised = bool(self.exception) and not self.kind and not self.swallowed
        return is_raised and self.truth is Truth.YES and self.guard is True


def always_fits(
    form: Use, target: ResolvedPath | Absent, surface: Surface, added: Collection[str], history: OtherReleases | None
) -> bool:
    """Return whether uses of a form can't break with any subset of their keywords, so that no guard is evaluated.

    What the consuming package itself assigns is not missing. A base outside the provider may have what a class lacks,
    but hardly a private attribute.
    """
    replaces = form.kind in REPLACING
    if replaces and not history and not surface.calls_of(form.path):
        return True  # without other releases, only a call can show that a replacement does not fit
    if isinstance(target, Absent):
        is_private = form.kind == "method" and form.arguments is None
        is_own = any(f"{form.path}.".startswith(path if path[-1] == ":" else f"{path}.") for path in added)
        return (not replaces and is_own) or not (target.sure or is_private)
    if replaces:
        return not (form.signature and surface.calls_of(form.path))
    if form.arguments is None:
        return True
    if target.refuses or (form.unpacks and target.returns not in (0, form.unpacks)):
        return False
    names = [name for name, _ in form.arguments.keywords]
    unguarded = [name for name, is_always in form.arguments.keywords if is_always]
    for signature, bound in target.callables:
        for passed in (names, unguarded) if len(unguarded) < len(names) else (names,):
            if any(_bound(form.arguments, signature, bound, passed)):
                return False
        if signature.text.endswith(DROPPING) and not all(map(signature.takes, names)):
            return False
    return True


def breaks_of(
    use: Use, target: ResolvedPath | Absent, judge: Judge, surface: Surface, history: OtherReleases | None
) -> Iterator[Break]:
    """Yield the ways in which a use fails with what it refers to."""
    if use.kind in REPLACING:
        yield from _replacing(use, target, surface, history)
    elif isinstance(target, Absent):
        is_of_object = target.what in ("member", "object")
        if use.kind == "method" and not (is_of_object and history and history.offered(use.path)):
            return  # what no release has, a subclass adds; without the class there is no object
        break_ = _raised(use, *_absence(target, use))
        if not (break_.swallowed and use.fallback):  # the TE fallback is a use of its own
            yield break_
    elif use.arguments is not None:
        misfits = list(_binding(use, use.arguments, target, judge, history))
        yield from misfits
        yield from _dropped(use, use.arguments, target, judge, history)
        if any(misfit.is_sure for misfit in misfits):
            return
        yield from _refusing(use, use.arguments, target, judge)
        if use.unpacks and target.returns not in (0, use.unpacks):
            message = f"not enough values to unpack (expected {use.unpacks}, got {target.returns})"
            if target.returns > use.unpacks:
                message = f"too many values to unpack (expected {use.unpacks})"
            yield Break(message, "ValueError", signature=f"returns {target.returns} values")


def _replacing(
    use: Use, target: ResolvedPath | Absent, surface: Surface, history: OtherReleases | None
) -> Iterator[Break]:
    """Bind the calls that the provider makes to the method or function that the consuming package puts in its place."""
    if isinstance(target, Absent):
        if use.path.endswith((f":{target.name}", f".{target.name}")) and history and history.offered(use.path):
            effect = "override is never called" if use.kind == "override" else "patch replaces nothing"
            yield Break(f"'{target.owner}' has no '{target.name}': the {effect}", "", kind=FindingKind.SILENTLY_OFF)
        return
    refused = list(_refused(use, target, surface))
    if refused and (history is None or history.fitted(use)):
        # One through `self`, then the one with the most arguments, and of several the one nearest to the original.
        message, call = max(refused, key=lambda pair: _certainty(pair[1], surface, use.path))
        text = f"{target.name}() as replaced {message}, called in {surface.caller(call)}"
        yield Break(text, "TypeError", signature=use.signature.lstrip("cs"), kind=FindingKind.OVERRIDE)


def _certainty(call: OwnCall, surface: Surface, path: str) -> tuple[bool, int, int]:
    """Return how certain it is that a call is to a method: known receiver, arguments, nearness of the modules."""
    pairs = zip(surface.caller(call).split("."), re.split("[:.]", path), strict=False)
    nearness = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return bool(call.owner), call.positional + len(call.keywords), nearness


def fits(use: Use, surface: Surface) -> bool:
    """Return whether a release has what an override or a patch replaces, and all of its own calls fit."""
    target = surface.lookup(use.path, via_instance=True)
    return isinstance(target, ResolvedPath) and not any(_refused(use, target, surface))


def places(surface: Surface, path: str, position: int, parameter: str) -> bool:
    """Return whether a positional argument of the callable at `path` lands on that parameter in a release."""
    target = surface.lookup(path, via_instance=True)
    callables = target.callables if isinstance(target, ResolvedPath) else ()
    return any(signature.slots[bound:][position : position + 1] == (parameter,) for signature, bound in callables)


def _refused(use: Use, target: ResolvedPath, surface: Surface) -> Iterator[tuple[str, OwnCall]]:
    """Yield Python's message and the call for each of the provider's calls that the replacement refuses."""
    signature = parse_signature(use.signature.lstrip("cs"))
    bound = use.signature[0] == "c" or (use.signature[0] == "(" and any(bound for _, bound in target.callables))
    for call in surface.calls_of(use.path):
        yield from ((problem.message, call) for problem in call.problems(signature, bound=bound)[:1])


def _dropped(
    use: Use, arguments: Arguments, target: ResolvedPath, judge: Judge, history: OtherReleases | None
) -> Iterator[Break]:
    """Yield the keywords that a dataclass of pydantic drops, and that another release takes."""
    for signature, _ in target.callables if history else ():
        for name, guard in arguments.keywords if signature.text.endswith(DROPPING) else ():
            truth = judge.truth(all_of(judge.rest(use.guard), judge.rest(guard)))
            is_taken = signature.takes(name) or truth is Truth.NO
            if not is_taken and history and history.taken(use.path, name):
                message = f"{target.name}() drops the keyword argument '{name}'"
                yield Break(message, "", truth, guard, signature=signature.text, kind=FindingKind.IGNORED)


def _refusing(use: Use, arguments: Arguments, target: ResolvedPath, judge: Judge) -> Iterator[Break]:
    """Yield what the first lines of the callee raise, whatever the values of the arguments are."""
    for signature, bound in target.callables[:1]:
        filled = signature.slots[bound : bound + len(arguments.positional)]
        for exception, parameter in target.refuses:
            passed = any_of(*(guard for name, guard in arguments.keywords if name == parameter), parameter in filled)
            guard = negate(passed) if parameter else True
            truth = judge.truth(all_of(judge.rest(use.guard), judge.rest(guard)))
            is_open = parameter and (arguments.starred or arguments.open_keywords)
            if truth is not Truth.NO and not is_open:
                without = f" without '{parameter}'" if parameter else ""
                message = f"{target.name}() raises {exception}{without}"
                yield _raised(use, exception, message, truth, guard, signature.text)


def _raised(
    use: Use, exception: str, message: str, truth: Truth = Truth.YES, guard: Guard = True, signature: str = ""
) -> Break:
    swallowed = exception in use.swallowed or len(use.swallowed) == len(CATCHES)  # all: any exception is caught
    effect = f"; swallowed: {use.effect}" if swallowed else ""
    return Break(message + effect, exception, truth, guard, swallowed, signature)


def _absence(absent: Absent, use: Use) -> tuple[str, str]:
    if absent.what == "object" or use.kind == "method":
        unless = ", unless its class is another" if use.kind == "method" else ""
        return "AttributeError", f"'{absent.owner}' object has no attribute '{absent.name}'{unless}"
    if absent.what == "member":
        owner = f"'{use.bound}' object" if use.bound else f"type object '{absent.owner}'"
        return "AttributeError", f"{owner} has no attribute '{absent.name}'"
    if absent.what == "module":
        return "ModuleNotFoundError", f"No module named '{absent.name}'"
    if use.kind == "import":
        return "ImportError", f"cannot import name '{absent.name}' from '{absent.owner}'"
    return "AttributeError", f"module '{absent.owner}' has no attribute '{absent.name}'"


def _binding(
    use: Use, arguments: Arguments, target: ResolvedPath, judge: Judge, history: OtherReleases | None
) -> Iterator[Break]:
    """Bind the call to each possible definition of the callee; it certainly fails only where all of them fail."""
    passed: dict[str, tuple[Guard, Truth]] = {}
    for name, guard in arguments.keywords:
        # With the call's own guard: an earlier `assert not wide or TE >= 2` decides a keyword under `wide`.
        truth = judge.truth(guard)
        if guard is not True and truth is not Truth.NO:
            truth = judge.truth(all_of(judge.rest(use.guard), judge.rest(guard)))
        if truth is not Truth.NO:
            passed[name] = guard, truth
    results = [(signature, *_bound(arguments, signature, bound, passed)) for signature, bound in target.callables]
    is_certain = all(problems for _, problems, _ in results)
    for signature, problems, misplacements in results:
        reported: list[Guard] = []
        for message, keyword in problems:
            guard, truth = passed.get(keyword, (True, Truth.YES))
            if any(implies(guard, earlier) for earlier in reported):
                continue  # Python raises for the first only
            reported.append(guard)
            truth = truth if is_certain else Truth.UNCLEAR
            yield _raised(use, "TypeError", f"{target.name}() {message}", truth, guard, signature.text)
        for message, position, parameter in () if problems else misplacements:
            if history is None or history.placed(use.path, position, parameter):
                yield Break(f"{target.name}(): {message}", "", signature=signature.text)


def _bound(
    arguments: Arguments, signature: CallSignature, bound: bool, passed: Collection[str]
) -> tuple[list[BindingError], list[Misplacement]]:
    """Return why a call does not bind to a signature, and its arguments that bind to another parameter than meant."""
    count, starred, open_keywords = len(arguments.positional), arguments.starred, arguments.open_keywords
    problems = bind(signature, count, passed, bound=bound, starred=starred, open_keywords=open_keywords)
    return problems, misbound(signature, arguments.positional, passed, bound=bound)
