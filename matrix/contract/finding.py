"""Hold the uses of a consuming release against the surface of a TE release: every break is a finding."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from matrix.contract.argument_names import meant_elsewhere
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
    describe,
    guard_parts,
)
from matrix.contract.signature import CallSignature
from matrix.contract.surface import Absent, ResolvedPath, Surface
from matrix.contract.usage import Arguments, Calls, Site, Use
from matrix.verdicts.outcome import Raised

TELLING = (TeVersion, Offers, Takes)  # guards that somebody wrote, and wants to see in a finding


class FindingKind(str, Enum):
    """What a finding says."""

    DEFINITE = "definite"  # whoever reaches the line gets the exception
    POSSIBLE = "possible"  # so it seems, but a guard or a definition was not understood
    MISBOUND = "misbound"  # no exception: an argument becomes another one than its caller means
    SILENTLY_OFF = "silently-off"  # the exception is caught, and a feature is off or replaced without a word


@dataclass(frozen=True)
class Finding:
    """One break of the contract between two releases."""

    mcore: str
    te: str
    callee: str  # dotted path
    call_site: Site
    guard: str  # under which the line is reached, "" for always
    kind: FindingKind
    message: str  # what Python says, or would have to say
    signature: str = ""  # the callee's, where it has one
    exception: str = ""  # which Python raises, "" where none

    @property
    def raised(self) -> Raised:
        """The break as an exception: Python's own, or a Misbound where Python raises nothing."""
        return Raised(self.exception or "Misbound", self.message)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        record: dict[str, Any] = dict(vars(self))
        return {**record, "call_site": str(self.call_site), "kind": self.kind.value}


def find(calls: Calls, surface: Surface, te_version: str | None = None) -> list[Finding]:
    """Return every break between a consuming release and a TE release, by call site.

    `te_version` is what this TE reports at run time, where that differs from the surface's own version (a build of a
    release branch carries a local version).
    """
    version = te_version or surface.version
    judge = Judge(surface, version)
    found: dict[tuple[Any, ...], Finding] = {}
    stops: dict[tuple[str, str], list[tuple[int, Guard]]] = {}  # function -> lines that surely raise
    for use in calls.uses:
        there = surface.lookup(use.path, via_instance=use.bound)
        if there is None or _fits(use, there):
            continue
        reached = judge.truth(use.guard)
        body = (use.site.path, use.site.function)
        if reached is Truth.NO:
            continue
        if any(line < use.site.line and _implies(judge.rest(use.guard), stop) for line, stop in stops.get(body, ())):
            continue  # a line before this one raises whenever this one would be reached
        for break_ in _breaks(use, there, judge):
            if break_.exception in use.refused:
                continue  # upstream refuses this TE itself, in its own words
            if break_.is_sure and reached is not Truth.UNCLEAR:
                stops.setdefault(body, []).append((use.site.line, judge.rest(use.guard)))
            truth = min(reached, break_.truth)
            finding = Finding(
                calls.version, version, use.path.rstrip(":").replace(":", "."), use.site,
                describe(_told(use, break_.guard, judge)), _kind(break_, truth), break_.message, break_.signature,
                break_.exception,
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

    @property
    def is_sure(self) -> bool:
        """Say whether nothing after it runs."""
        return bool(self.exception) and not self.swallowed and self.truth is Truth.YES and self.guard is True


def _fits(use: Use, found: ResolvedPath | Absent) -> bool:
    """Return whether a use can't break, whichever of its keywords are passed: the guards then need not be looked at."""
    if isinstance(found, Absent):
        return False
    if use.arguments is None:
        return True
    every = frozenset(name for name, _ in use.arguments.keywords)
    always = frozenset(name for name, guard in use.arguments.keywords if guard is True)
    return not any(
        any(_bound(use.arguments, signature, bound, passed))
        for signature, bound in found.callables
        for passed in {every, always}
    )


def _breaks(use: Use, found: ResolvedPath | Absent, judge: Judge) -> Iterator[_Break]:
    if isinstance(found, Absent):
        exception, message = _absence(found, use)
        swallowed = exception in use.swallowed
        if not (swallowed and use.fallback):  # what it falls back to in TE is a use of its own
            effect = f"; swallowed: {use.effect}" if swallowed else ""
            yield _Break(message + effect, exception, swallowed=swallowed)
    elif use.arguments is not None:
        yield from _binding(use, use.arguments, found, judge)


def _absence(absent: Absent, use: Use) -> tuple[str, str]:
    if absent.what == "member":
        return "AttributeError", f"type object '{absent.owner}' has no attribute '{absent.name}'"
    if absent.what == "module":
        return "ModuleNotFoundError", f"No module named '{absent.name}'"
    if use.kind == "import":
        return "ImportError", f"cannot import name '{absent.name}' from '{absent.owner}'"
    return "AttributeError", f"module '{absent.owner}' has no attribute '{absent.name}'"


def _binding(use: Use, arguments: Arguments, found: ResolvedPath, judge: Judge) -> Iterator[_Break]:
    """Bind the call to each way the callee may be defined; it surely fails only where all of them fail."""
    passed: dict[str, tuple[Guard, Truth]] = {}
    for name, guard in arguments.keywords:
        # Together with the call's own guard: `assert not wide or TE >= 2` before it decides about one under `wide`.
        truth = judge.truth(guard)
        if guard is not True and truth is not Truth.NO:
            truth = judge.truth(all_of(judge.rest(use.guard), judge.rest(guard)))
        if truth is not Truth.NO:
            passed[name] = guard, truth
    results = [_bound(arguments, signature, bound, passed) for signature, bound in found.callables]
    swallowed = "TypeError" in use.swallowed
    effect = f"; swallowed: {use.effect}" if swallowed else ""
    for (signature, _), (problems, misbound) in zip(found.callables, results, strict=True):
        said: list[Guard] = []
        for message, keyword in problems:
            guard, truth = passed.get(keyword, (True, Truth.YES))
            if any(_implies(guard, earlier) for earlier in said):
                continue  # Python raises the first
            said.append(guard)
            if not all(others for others, _ in results):
                truth = Truth.UNCLEAR
            yield _Break(f"{found.name}() {message}{effect}", "TypeError", truth, guard, swallowed, signature.text)
        if not problems:
            for message in misbound:
                yield _Break(f"{found.name}(): {message}", "", signature=signature.text)


def _bound(
    arguments: Arguments, signature: CallSignature, bound: bool, passed: Collection[str]
) -> tuple[list[tuple[str, str]], list[str]]:
    binding = signature.bind(
        len(arguments.positional), tuple(passed), bound=bound, starred=arguments.starred,
        open_keywords=arguments.open_keywords,
    )  # fmt: skip
    problems = [(problem.message, problem.keyword) for problem in binding.problems]
    names = [
        parameter.name for parameter in signature.parameters if parameter.kind in ("positional", "either", "keyword")
    ]
    misbound = []
    for place, landed in binding.landed:
        argument = arguments.positional[place]
        meant = meant_elsewhere(argument, landed, names)
        if meant is not None and meant not in passed:
            misbound.append(f"positional argument '{argument}' lands on '{landed}', and means '{meant}'")
    return problems, misbound


def _kind(break_: _Break, truth: Truth) -> FindingKind:
    if truth is Truth.UNCLEAR:
        return FindingKind.POSSIBLE
    if not break_.exception:
        return FindingKind.MISBOUND
    return FindingKind.SILENTLY_OFF if break_.swallowed else FindingKind.DEFINITE


def _told(use: Use, more: Guard, judge: Judge) -> Guard:
    """Say what stands around the line, and on which TE versions it is reached at all.

    What else depends on this TE is known here, and left out: what remains are conditions of the run.
    """
    versions = [part for part in guard_parts(use.guard) if isinstance(part, TeVersion)]
    here = [*guard_parts(use.here), *guard_parts(more)]
    told = all_of(*versions, *(part if isinstance(part, TELLING) else judge.rest(part) for part in here))
    return all_of(*(part for part in guard_parts(told) if not _granted(part)))


def _granted(guard: Guard) -> bool:
    if isinstance(guard, AnyOf):
        return any(map(_granted, guard.parts))
    return isinstance(guard, Config) and guard.text.endswith("is installed")
