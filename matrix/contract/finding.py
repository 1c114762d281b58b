"""Check the uses of a consuming package against the surface of a provider's release: every break is a finding."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import takewhile
from typing import Any, Final, Protocol

from matrix.contract.argument_names import misplaced
from matrix.contract.guard import (
    AnyOf,
    Config,
    Guard,
    Judge,
    Offers,
    Takes,
    TeVersion,
    Truth,
    all_of,
    any_of,
    describe,
    guard_parts,
    negate,
)
from matrix.contract.provider import MEGATRON_CORE, PROVIDERS, TRANSFORMER_ENGINE, provider_of
from matrix.contract.signature import BindingError, CallSignature, parse_signature
from matrix.contract.surface import Absent, ResolvedPath, Surface
from matrix.contract.usage import CATCHES, Arguments, Calls, Site, Use
from matrix.verdicts.outcome import Raised

DROPPING = ",**extra)"  # the constructor of a dataclass of pydantic; see matrix.contract.definition
REPLACING = ("override", "patch")
OPTIONAL = ("masked", "lost", "implausible")  # in JSON only where they hold
SHOWN = (TeVersion, Offers, Takes)  # guards in the source that a finding shows even where this TE decides them


class FindingKind(str, Enum):
    """The kind of a break."""

    DEFINITE = "definite"  # the line raises the exception whenever it is reached
    POSSIBLE = "possible"  # it depends on a guard or a definition that was not understood
    MISBOUND = "misbound"  # no exception: an argument binds to another parameter than its caller means
    OVERRIDE = "override"  # the provider calls a method or function that this code replaces, and it can't take the call
    IGNORED = "ignored"  # no exception: a dataclass of pydantic drops a keyword that other releases take
    SILENTLY_OFF = "silently-off"  # the exception is caught, and a feature is silently off or replaced


BREAKING: Final = (FindingKind.DEFINITE, FindingKind.MISBOUND, FindingKind.OVERRIDE)


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
    masked: str = ""  # the break of the same pair that raises before this line, "" for none
    lost: str = ""  # the feature that is silently off, "" where that is unknown
    implausible: str = ""  # why nobody runs this pair of releases, "" for a plausible one
    packages: tuple[str, str] = (MEGATRON_CORE.package, TRANSFORMER_ENGINE.package)  # consumer, provider

    @property
    def raised(self) -> Raised:
        """The break as an exception: Python's own, or a Misbound where Python raises nothing."""
        return Raised(self.exception or "Misbound", self.message)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        consumer, provider = self.packages
        known = PROVIDERS.get(consumer)
        record: dict[str, Any] = {
            known.key if known else "consumer": self.consumer,
            PROVIDERS[provider].key: self.provider,
        }
        left_out = ("consumer", "provider", "packages")
        record.update((name, value) for name, value in vars(self).items() if name not in left_out)
        for name in OPTIONAL:
            if not record[name]:
                del record[name]
        return {**record, "call_site": str(self.call_site), "kind": self.kind.value}


class OtherReleases(Protocol):
    """The other releases of a provider."""

    def offered(self, path: str) -> bool:
        """Return whether any release has a path."""

    def fitted(self, use: Use) -> bool:
        """Return whether an override or a patch fits any release."""

    def taken(self, path: str, parameter: str) -> bool:
        """Return whether the callable at `path` has that parameter in any release."""


def find(
    calls: Calls, surface: Surface, version: str | None = None, history: OtherReleases | None = None
) -> list[Finding]:
    """Return every break between a consuming package and a release of its provider, by call site.

    `version` is the one that the provider reports at run time, if it differs from the surface's (a build of a release
    branch has a local version). With `history`, an override or a patch is a finding only where it fits another release:
    what fits none was never meant to.
    """
    version = version or surface.version
    title = provider_of(surface.package).title
    patches = [use for use in calls.uses if use.kind == "patch"]
    unpatched = Judge(surface, version)  # `if hasattr(m, "f"): m.f = g` adds nothing
    added = {use.path for use in patches if unpatched.truth(use.guard) is not Truth.NO}
    judge = Judge(surface, version, added)
    found: dict[tuple[Any, ...], Finding] = {}
    stops: dict[tuple[str, str], list[tuple[int, Guard]]] = {}  # function -> lines that certainly raise
    targets: dict[int, ResolvedPath | Absent] = {}  # of the uses that may break
    for form, places in calls.forms.items():
        target = surface.lookup(form.path, via_instance=bool(form.bound))
        if target is not None and not _fits(form, target, surface, added, history):
            targets.update(dict.fromkeys(places, target))
    for place, target in sorted(targets.items()):
        use = calls.uses[place]
        reached = judge.truth(use.guard)
        if reached is Truth.NO:
            continue
        body = (use.site.path, use.site.function)
        if any(line < use.site.line and _implies(judge.rest(use.guard), stop) for line, stop in stops.get(body, ())):
            continue  # an earlier line raises whenever this one would be reached
        for break_ in _breaks(use, target, judge, surface, history):
            if break_.exception in use.refused:
                continue  # upstream rejects this TE itself, with its own error
            if break_.is_sure and reached is not Truth.UNCLEAR and use.kind != "method":
                stops.setdefault(body, []).append((use.site.line, judge.rest(use.guard)))
            truth = min(reached, break_.truth)
            finding = Finding(
                calls.version, version, use.path.rstrip(":").replace(":", "."), use.site,
                describe(_visible(use, break_.guard, judge), title), _kind(use, break_, truth), break_.message,
                break_.signature, break_.exception, packages=(calls.consumer, surface.package),
            )  # fmt: skip
            found.setdefault((finding.callee, str(finding.call_site), finding.kind, finding.message), finding)
    return list(found.values())


def _implies(guard: Guard, other: Guard) -> bool:
    parts = set(guard_parts(guard))
    return parts.issuperset(guard_parts(other)) or set(guard_parts(all_of(guard, other))) == parts


@dataclass(frozen=True)
class _Break:
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
        return (
            bool(self.exception)
            and not self.kind
            and not self.swallowed
            and self.truth is Truth.YES
            and self.guard is True
        )


def _fits(
    form: Use, found: ResolvedPath | Absent, surface: Surface, added: Collection[str], history: OtherReleases | None
) -> bool:
    """Return whether uses of a form can't break with any subset of their keywords, so that no guard is evaluated.

    What the consuming package itself assigns is not missing. A base outside the provider may have what a class lacks,
    but hardly a private attribute.
    """
    replaces = form.kind in REPLACING
    if replaces and not history and not surface.calls_of(form.path):
        return True  # without other releases, only a call can show that a replacement does not fit
    if isinstance(found, Absent):
        is_private = form.kind == "method" and form.arguments is None
        return (not replaces and form.path in added) or not (found.sure or is_private)
    if replaces:
        return not (form.signature and surface.calls_of(form.path))
    if form.arguments is None:
        return True
    every = [name for name, _ in form.arguments.keywords]
    always = [name for name, is_always in form.arguments.keywords if is_always]
    if found.refuses or (form.unpacks and found.returns not in (0, form.unpacks)):
        return False
    for signature, bound in found.callables:
        if any(_bound(form.arguments, signature, bound, every)) or (
            len(always) < len(every) and any(_bound(form.arguments, signature, bound, always))
        ):
            return False
        if signature.text.endswith(DROPPING) and not all(map(signature.takes, every)):
            return False
    return True


def _breaks(
    use: Use, found: ResolvedPath | Absent, judge: Judge, surface: Surface, history: OtherReleases | None
) -> Iterator[_Break]:
    if use.kind in REPLACING:
        yield from _replacing(use, found, surface, history)
    elif (
        use.kind == "method"
        and isinstance(found, Absent)
        and not (found.what in ("member", "object") and history and history.offered(use.path))
    ):
        return  # what no release has, a subclass adds; without the class there is no object
    elif isinstance(found, Absent):
        exception, message = _absence(found, use)
        swallowed = exception in use.swallowed
        if not (swallowed and use.fallback):  # the TE fallback is a use of its own
            yield _Break(message + _effect(use, swallowed), exception, swallowed=swallowed)
    elif use.arguments is not None:
        broken = list(_binding(use, use.arguments, found, judge))
        yield from broken
        yield from _dropped(use, use.arguments, found, judge, history)
        if any(one.is_sure for one in broken):
            return
        yield from _refusing(use, use.arguments, found, judge)
        if use.unpacks and found.returns not in (0, use.unpacks):
            yield _Break(
                _unpacking(use.unpacks, found.returns), "ValueError", signature=f"returns {found.returns} values"
            )


def _replacing(
    use: Use, found: ResolvedPath | Absent, surface: Surface, history: OtherReleases | None
) -> Iterator[_Break]:
    """Bind the calls that the provider makes to the method or function that the consuming package puts in its place."""
    if isinstance(found, Absent):
        if use.path.endswith((f":{found.name}", f".{found.name}")) and history and history.offered(use.path):
            effect = "override is never called" if use.kind == "override" else "patch replaces nothing"
            yield _Break(f"'{found.owner}' has no '{found.name}': the {effect}", "", kind=FindingKind.SILENTLY_OFF)
        return
    refused = list(_refused(use, found, surface))
    if refused and (history is None or history.fitted(use)):
        # The most frequent one, and of several call sites the one nearest to the original.
        message, site = max(
            refused,
            key=lambda one: (sum(one[0] == other for other, _ in refused), _nearness(one[1], use.path)),
        )
        text = f"{found.name}() as replaced {message}, called in {site}"
        yield _Break(text, "TypeError", signature=use.signature.lstrip("cs"), kind=FindingKind.OVERRIDE)


def _nearness(module: str, path: str) -> int:
    """Return the number of leading names that a module and a path share."""
    pairs = zip(module.split("."), re.split("[:.]", path), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def fits(use: Use, surface: Surface) -> bool:
    """Return whether a release has what an override or a patch replaces, and all of its own calls fit."""
    found = surface.lookup(use.path, via_instance=True)
    return isinstance(found, ResolvedPath) and not any(_refused(use, found, surface))


def _refused(use: Use, found: ResolvedPath, surface: Surface) -> Iterator[tuple[str, str]]:
    """Yield (Python's message, module) for each of the provider's calls that the replacement refuses."""
    new = parse_signature(use.signature.lstrip("cs"))
    given = use.signature[0] == "c" or (use.signature[0] == "(" and any(bound for _, bound in found.callables))
    for call in surface.calls_of(use.path):
        yield from ((problem.message, surface.caller(call)) for problem in call.problems(new, bound=given)[:1])


def _dropped(
    use: Use, arguments: Arguments, found: ResolvedPath, judge: Judge, history: OtherReleases | None
) -> Iterator[_Break]:
    """Yield the keywords that a dataclass of pydantic drops, and that another release takes."""
    for signature, _ in found.callables if history else ():
        for name, guard in arguments.keywords if signature.text.endswith(DROPPING) else ():
            truth = judge.truth(all_of(judge.rest(use.guard), judge.rest(guard)))
            known = signature.takes(name) or truth is Truth.NO or history is None or not history.taken(use.path, name)
            if not known:
                message = f"{found.name}() drops the keyword argument '{name}'"
                yield _Break(message, "", truth, guard, signature=signature.text, kind=FindingKind.IGNORED)


def _refusing(use: Use, arguments: Arguments, found: ResolvedPath, judge: Judge) -> Iterator[_Break]:
    """Yield what the first lines of the callee raise, whatever the values of the arguments are."""
    for signature, bound in found.callables[:1] if found.refuses else ():
        landed = signature.slots[bound : bound + len(arguments.positional)]
        for exception, parameter in found.refuses:
            given = any_of(*(guard for name, guard in arguments.keywords if name == parameter), parameter in landed)
            guard = negate(given) if parameter else True
            truth = judge.truth(all_of(judge.rest(use.guard), judge.rest(guard)))
            is_open = parameter and (arguments.starred or arguments.open_keywords)
            if truth is not Truth.NO and not is_open:
                swallowed = exception in use.swallowed or len(use.swallowed) == len(CATCHES)
                without = f" without '{parameter}'" if parameter else ""
                message = f"{found.name}() raises {exception}{without}{_effect(use, swallowed)}"
                yield _Break(message, exception, truth, guard, swallowed, signature.text)


def _effect(use: Use, swallowed: bool) -> str:
    return f"; swallowed: {use.effect}" if swallowed else ""


def _unpacking(expected: int, got: int) -> str:
    if got > expected:
        return f"too many values to unpack (expected {expected})"
    return f"not enough values to unpack (expected {expected}, got {got})"


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


def _binding(use: Use, arguments: Arguments, found: ResolvedPath, judge: Judge) -> Iterator[_Break]:
    """Bind the call to each possible definition of the callee; it certainly fails only where all of them fail."""
    passed: dict[str, tuple[Guard, Truth]] = {}
    for name, guard in arguments.keywords:
        # With the call's own guard: an earlier `assert not wide or TE >= 2` decides a keyword under `wide`.
        truth = judge.truth(guard)
        if guard is not True and truth is not Truth.NO:
            truth = judge.truth(all_of(judge.rest(use.guard), judge.rest(guard)))
        if truth is not Truth.NO:
            passed[name] = guard, truth
    results = [_bound(arguments, signature, bound, passed) for signature, bound in found.callables]
    swallowed = "TypeError" in use.swallowed
    effect = _effect(use, swallowed)
    for (signature, _), (problems, misbound) in zip(found.callables, results, strict=True):
        reported: list[Guard] = []
        for message, keyword in problems:
            guard, truth = passed.get(keyword, (True, Truth.YES))
            if any(_implies(guard, earlier) for earlier in reported):
                continue  # Python raises for the first only
            reported.append(guard)
            if not all(others for others, _ in results):
                truth = Truth.UNCLEAR
            yield _Break(f"{found.name}() {message}{effect}", "TypeError", truth, guard, swallowed, signature.text)
        if not problems:
            for message in misbound:
                yield _Break(f"{found.name}(): {message}", "", signature=signature.text)


def _bound(
    arguments: Arguments, signature: CallSignature, bound: bool, passed: Collection[str]
) -> tuple[list[BindingError], list[str]]:
    problems = signature.problems(
        len(arguments.positional), passed, bound=bound, starred=arguments.starred, open_keywords=arguments.open_keywords
    )
    misbound = [
        f"positional argument '{argument}' lands on '{landed}', and means '{meant}'"
        for argument, landed in zip(arguments.positional, signature.slots[bound:], strict=False)
        if argument not in ("", landed) and (meant := misplaced(argument, landed, signature.named))
        if meant not in passed
    ]
    return problems, misbound


def _kind(use: Use, break_: _Break, truth: Truth) -> FindingKind:
    if truth is Truth.UNCLEAR:
        return FindingKind.POSSIBLE
    if break_.kind:
        return break_.kind
    if use.kind == "method" and break_.exception:
        return FindingKind.POSSIBLE  # the object may be of a subclass with a method of its own
    if not break_.exception:
        return FindingKind.MISBOUND
    return FindingKind.SILENTLY_OFF if break_.swallowed else FindingKind.DEFINITE


def _visible(use: Use, more: Guard, judge: Judge) -> Guard:
    """Return the guard to show: the conditions around the line, and the TE versions that reach it.

    All other conditions on TE are decided for this TE and left out; conditions of the run remain.
    """
    versions = [part for part in guard_parts(use.guard) if isinstance(part, TeVersion)]
    local = [*guard_parts(use.here), *guard_parts(more)]
    shown = all_of(*versions, *(part if isinstance(part, SHOWN) else judge.rest(part) for part in local))
    return all_of(*(part for part in guard_parts(shown) if not _is_assumed(part)))


def _is_assumed(guard: Guard) -> bool:
    """Return whether a guard only requires a package to be installed."""
    if isinstance(guard, AnyOf):
        return any(map(_is_assumed, guard.parts))
    return isinstance(guard, Config) and guard.text.endswith("is installed")
