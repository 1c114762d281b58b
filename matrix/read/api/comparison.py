"""Compare the uses of a consuming package with the API of a provider's release: each break is a finding.

_resolve   what the uses that may break refer to in this release
_judge     which of them break, under which guard, and what comes before them
_describe  a break as a finding
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import Final

from matrix.read.api.api import Absent, ResolvedPath, Surface
from matrix.read.api.finding import (
    REPLACING,
    Break,
    CaughtEnd,
    Finding,
    FindingKind,
    OtherReleases,
    always_fits,
    breaks_of,
)
from matrix.read.api.guard import (
    INSTALLED,
    AnyOf,
    Config,
    Guard,
    Judge,
    Loads,
    Offers,
    Takes,
    TeVersion,
    Truth,
    all_of,
    describe,
    guard_parts,
    implies,
    leaves,
)
from matrix.read.api.provider import Calls, Site, Use, provider_of

EARLIER: Final = "raises before"
UNRELEASED: Final = "no recorded release has it"  # so no upgrade mends it: a private build, a branch, or own code
SHOWN = (TeVersion, Offers, Takes)  # guards in the source that a finding shows even where this release decides them


@dataclass(frozen=True)
class _Pair:
    """A consuming package and a release of its provider; `version` is the one that it reports at run time."""

    calls: Calls
    surface: Surface
    version: str
    history: OtherReleases | None = None


def find(
    calls: Calls, surface: Surface, version: str | None = None, history: OtherReleases | None = None
) -> list[Finding]:
    """Return every break between a consuming package and a release of its provider, by call site.

    `version` is the one that the provider reports at run time, if it differs from the surface's. With `history`, an
    override or a patch is a finding only where it fits another release, an argument misbound where another has it so.
    """
    pair = _Pair(calls, surface, version or surface.version, history)
    findings: dict[tuple[object, ...], Finding] = {}
    for broken in _judge(pair, _resolve(pair)):
        finding = _describe(pair, broken)
        findings.setdefault((finding.callee, finding.call_site, finding.kind, finding.message), finding)
    return list(findings.values())


def calls_to(function: str, calls: Calls, surface: Surface) -> tuple[list[Use], list[Finding]]:
    """Return the calls to a function, given by its bare name, that are reached; and what certainly raises in the
    functions that make them.
    """
    ends = (f":{function}", f".{function}")
    callers = {(use.site.path, use.site.function) for use in calls.uses if use.path.endswith(ends)}
    around = replace(calls, uses=[use for use in calls.uses if (use.site.path, use.site.function) in callers])
    judge = Judge(surface, surface.version)
    named = [use for use in around.uses if use.path.endswith(ends) and use.arguments]
    reached = [use for use in named if judge.truth(use.guard) is not Truth.NO]
    return reached, [finding for finding in find(around, surface) if finding.kind is FindingKind.DEFINITE]


def changed(calls: Calls, surface: Surface, tested: Surface) -> list[Finding]:
    """Return the calls that leave out an argument whose default is not that of the release they were tested with.

    A call that a guard keeps from one of both releases was written for the other.
    """
    pair = _Pair(calls, surface, surface.version)
    judge, judge_if_tested = (Judge(release, release.version) for release in (surface, tested))
    findings: dict[tuple[Site, str], Finding] = {}
    for form, numbers in calls.forms.items():
        uses = [calls.uses[number] for number in numbers]
        for (message, signature), use in product(_other_defaults(form, surface, tested), uses):
            if min(judge_if_tested.truth(use.guard), judge.truth(use.guard)) > Truth.UNCLEAR:
                guard, break_ = judge.rest(use.here), Break(message, "", signature=signature)
                findings[use.site, message] = _describe(pair, _Broken(use, break_, FindingKind.CHANGED, guard))
    return list(findings.values())


def _other_defaults(form: Use, surface: Surface, tested: Surface) -> Iterator[tuple[str, str]]:
    """Yield (message, signature) for each argument that a call leaves out, and whose default differs."""
    arguments = form.arguments
    if form.kind != "call" or not arguments or arguments.starred or arguments.open_keywords:
        return
    sides = [release.lookup(form.path, via_instance=bool(form.bound)) for release in (tested, surface)]
    callables = [side.callables for side in sides if isinstance(side, ResolvedPath) and len(side.callables) == 1]
    for ((old, _),), ((new, bound),) in pairwise(callables):
        passed = {*new.slots[: bound + len(arguments.positional)], *dict(arguments.keywords)}
        for name in sorted((old.defaults.keys() & new.defaults.keys()) - passed):
            before, now = old.defaults[name], new.defaults[name]
            if before != now and type(before) is type(now):  # else it is "deprecated"
                yield f"without '{name}': its default is {now!r}, not {before!r}", new.text


# ------------------------------------------------------------------- resolve


@dataclass(frozen=True)
class _Resolved:
    """What the uses that may break refer to, by their numbers.

    `added`: the paths that the consuming package itself assigns. Of the uses of what is missing, `unreleased` have the
    numbers of those of what no release has; `removed` are those that no code of the consumer catches, in order, without
    `only_built`: no release has those, and nothing imports them, so other builds of the releases have them, perhaps.
    """

    targets: Mapping[int, ResolvedPath | Absent]
    added: frozenset[str]
    unreleased: frozenset[int]
    removed: Mapping[int, Use]
    only_built: Mapping[int, Use]


def _resolve(pair: _Pair) -> _Resolved:
    """Look up each form of use once; nothing is judged for the uses of a form that always fits."""
    calls, surface, history = pair.calls, pair.surface, pair.history
    added, targets = _added(pair), dict[int, ResolvedPath | Absent]()
    for form, numbers in calls.forms.items():
        target = surface.lookup(form.path, via_instance=bool(form.bound))
        if target is not None and not always_fits(form, target, surface, added, history):
            targets.update(dict.fromkeys(numbers, target))
    absent = {number: target for number, target in sorted(targets.items()) if isinstance(target, Absent)}
    caught = {calls.uses[number].path for number in absent if _is_caught(calls.uses[number])}
    uncaught = {number: calls.uses[number] for number in absent if calls.uses[number].path not in caught}
    imported = {use.path for use in uncaught.values() if use.kind == "import"}
    lacked = (number for number in absent if history and _lacked(calls.uses[number], absent[number], history))
    unreleased = frozenset(lacked)
    only_built = {number: use for number, use in uncaught.items() if number in unreleased and use.path not in imported}
    removed = {number: use for number, use in uncaught.items() if number not in only_built}
    return _Resolved(targets, added, unreleased, removed, only_built)


def _added(pair: _Pair) -> frozenset[str]:
    """Return the names that a consuming package sets in its provider: `if hasattr(m, "f"): m.f = g` adds none."""
    patches = [use for use in pair.calls.uses if use.kind == "patch"]
    unpatched = Judge(pair.surface, pair.version, assumed={use.path for use in patches})
    return frozenset(use.path for use in patches if unpatched.truth(use.guard) is not Truth.NO)


def _is_caught(use: Use) -> bool:
    """Return whether the code behind a use of what is missing may run, as its exception is caught."""
    return use.kind in REPLACING or (use.kind != "method" and bool(use.swallowed or use.refused))


def _lacked(use: Use, absent: Absent, history: OtherReleases) -> bool:
    """Return whether every release lacks the part of a path that is missing."""
    module, _, attributes = use.path.partition(":")
    names, path = attributes.split("."), use.path
    if absent.name in names:
        path = f"{module}:{'.'.join(names[: names.index(absent.name) + 1])}"
    return history.lacked(f"{absent.name}:" if absent.what == "module" else path)


# --------------------------------------------------------------------- judge


@dataclass(frozen=True)
class _Broken:
    """A use that breaks. `guard` is the one to show; `end` the line that raises because the exception was caught."""

    use: Use
    break_: Break
    kind: FindingKind
    guard: Guard
    masked: str = ""
    end: Use | None = None


def _judge(pair: _Pair, resolved: _Resolved) -> Iterator[_Broken]:
    """Yield the uses that break: a line after another break is judged as if that one were fixed."""
    assumed = {use.path for use in resolved.only_built.values()}
    judge = Judge(pair.surface, pair.version, resolved.added, assumed)
    assumed = assumed | {use.path for use in resolved.removed.values()}
    judge_if_fixed = Judge(pair.surface, pair.version, resolved.added, assumed)
    lasting = [number for number, use in resolved.removed.items() if judge_if_fixed.truth(use.guard) > Truth.UNCLEAR]
    failing = {resolved.removed[number].path: resolved.removed[number].site for number in reversed(lasting)}
    removed = {resolved.targets[number] for number in lasting}
    raising_lines: dict[tuple[str, str], list[tuple[Site, Guard]]] = {}  # function -> lines that certainly raise
    for number, target in sorted(resolved.targets.items()):
        use = pair.calls.uses[number]
        raising = raising_lines.setdefault((use.site.path, use.site.function), [])
        earlier = _earlier(use, judge, failing, raising)
        active_judge = judge_if_fixed if earlier else judge
        reached = active_judge.truth(use.guard)
        if reached is Truth.NO or (earlier and use.kind != "import" and target in removed):
            continue  # it is the earlier break once more
        for break_ in breaks_of(use, target, active_judge, pair.surface, pair.history):
            if break_.exception in use.refused:
                continue  # upstream rejects this release itself, with its own error
            if (
                break_.is_sure
                and reached is not Truth.UNCLEAR
                and use.kind != "method"
                and number not in resolved.only_built
            ):
                raising.append((use.site, active_judge.rest(use.guard)))
            end = _end(pair.calls, use, active_judge) if break_.swallowed else None
            guard = _visible(end or use, break_.guard, active_judge)
            if guard is not False:  # else its conditions exclude each other
                kind = _kind(use, break_, min(reached, break_.truth), is_raised=_is_raised(end, pair))
                masked = UNRELEASED if break_.exception and number in resolved.unreleased else earlier
                yield _Broken(use, break_, kind, guard, masked, end)


def _earlier(use: Use, judge: Judge, failing: Mapping[str, Site], raising: Sequence[tuple[Site, Guard]]) -> str:
    """Return why a use is behind another break: an import that fails, or one of the lines of its function that raise
    whenever they are reached; "" for none.
    """
    sites = [failing[path] for path in failing if Loads(path) in leaves(use.guard)]
    if judge.truth(use.guard) is not Truth.NO:
        sites = [site for site, guard in raising if site.line < use.site.line and implies(judge.rest(use.guard), guard)]
    return f"{min(sites)} {EARLIER}" if sites else ""


def _end(calls: Calls, use: Use, judge: Judge) -> Use | None:
    """Return the first line that certainly raises after the exception of a use was caught, None without one."""
    for end in calls.ends.get(use.path, ()):
        is_its_own = end.site.path == use.site.path or (use.path, end.site.path) not in calls.catching
        if is_its_own and judge.truth(end.guard) > Truth.UNCLEAR:
            return end
    return None


def _is_raised(end: Use | None, pair: _Pair) -> bool:
    """Return whether a caught exception ends in another one.

    Upstream's own error for what no release up to this one has states that it needs a newer one.
    """
    history = pair.history
    return end is not None and (not history or not end.refused or history.had_before(end.path, pair.version))


def _kind(use: Use, break_: Break, truth: Truth, *, is_raised: bool) -> FindingKind:
    # The object of a method may be of a subclass with a method of its own.
    if not is_raised and (truth is Truth.UNCLEAR or (use.kind == "method" and break_.exception and not break_.kind)):
        return FindingKind.POSSIBLE
    raised = FindingKind.SILENTLY_OFF if break_.swallowed and not is_raised else FindingKind.DEFINITE
    return break_.kind or (raised if break_.exception else FindingKind.MISBOUND)


def _visible(use: Use, extra: Guard, judge: Judge) -> Guard:
    """Return the guard to show: the conditions around the line, and the versions that reach it.

    All other conditions on the provider are decided for this release and left out; conditions of the run remain.
    """
    releases = [part for part in guard_parts(use.guard) if isinstance(part, TeVersion)]
    conditions = [*guard_parts(use.here), *guard_parts(extra)]
    visible = all_of(*releases, *(part if isinstance(part, SHOWN) else judge.rest(part) for part in conditions))
    return all_of(*(part for part in guard_parts(visible) if not _is_assumed(part)))


def _is_assumed(guard: Guard) -> bool:
    """Return whether a guard only requires a package to be installed."""
    if isinstance(guard, AnyOf):
        return any(map(_is_assumed, guard.parts))
    return isinstance(guard, Config) and guard.text.endswith(INSTALLED)


# ------------------------------------------------------------------ describe


def _describe(pair: _Pair, broken: _Broken) -> Finding:
    """Return the finding of a use that breaks."""
    use, break_, end = broken.use, broken.break_, broken.end
    callee = use.path.rstrip(":").replace(":", ".")
    guard = describe(broken.guard, provider_of(pair.surface.package).title)
    sides, packages = (pair.calls.version, pair.version), (pair.calls.consumer, pair.surface.package)
    finding = Finding(*sides, callee, use.site, guard, broken.kind, break_.message, break_.signature, break_.exception)
    caught = CaughtEnd(end.effect, end.site) if end else None
    return replace(finding, masked=broken.masked, end=caught, packages=packages)
