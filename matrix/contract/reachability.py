"""The guard under which a function of the consuming package runs, from the rest of the package.

- A method runs on an instance, so its constructor has returned: `if TE < 2.14: raise` there guards every method.
- A private function runs under the guards of its calls, unless it is passed as a value.
- A configuration has passed its own checks: `config.x` never occurs with a TE that its __post_init__ rejects.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from matrix.contract.guard import (
    AllOf,
    AnyOf,
    Config,
    Guard,
    Not,
    all_of,
    any_of,
    guard_parts,
    leaves,
    names_te,
    negate,
    rejoined,
)
from matrix.contract.scope import ClassDefinition
from matrix.contract.uses import CATCHES, NOWHERE, Use

KNOWN_EVERYWHERE = ("self", "torch", "os", "isinstance", "len", "is", "in", "not", "installed")  # first parts of names
MOST_ENDS = 3  # recorded lines that raise because of one missing path; the first that is reached is shown
NAME = re.compile(r"(?<![\w.'\"])[A-Za-z_][\w.]*(?![\w'\"])")


@dataclass(eq=False)
class Function:
    """A function that was read.

    `guard`: the guard of its definition within `outer`; `outer`: the function that defines it; `blueprints`: for a
    method on an instance, the classes whose constructors have run; `completes`: the guard under which it returns
    rather than raises.
    """

    name: str
    guard: Guard
    outer: Function | None = None
    blueprints: tuple[ClassDefinition, ...] = ()
    completes: Guard = True

    @property
    def is_private(self) -> bool:
        """Return whether only its own package calls it: its name starts with one underscore."""
        name = self.name.rpartition(".")[2]
        return name.startswith("_") and not name.startswith("__")


@dataclass
class PendingUse:
    """A use during reading; the handlers of its failure and the guard of `function` are added at the end."""

    use: Use
    function: Function | None
    swallowed: list[str] = field(default_factory=list)
    effect: str = ""
    fallback: bool = False
    kept: bool = False  # the handler stores the exception, for a line that raises it later
    refused: list[str] = field(default_factory=list)


@dataclass
class Reaches:
    """Collects uses, calls, checks and constructors during reading, then computes the guard of each use."""

    drafts: list[PendingUse] = field(default_factory=list)
    calls: dict[str, list[PendingUse]] = field(default_factory=dict)  # of private functions, by name
    handed_on: set[str] = field(default_factory=set)  # private names used as values, or in files that were not read
    checks: list[Guard] = field(default_factory=list)  # guards that hold for every configuration
    checking: set[Function] = field(default_factory=set)  # the functions that have these checks
    constructors: dict[ClassDefinition, Function] = field(default_factory=dict)  # of classes that were read
    rethrows: dict[str, Use] = field(default_factory=dict)  # file -> the line that raises for a stored exception
    _reached: dict[Function, Guard] = field(default_factory=dict)
    _caught: dict[Function | None, Sequence[str]] = field(default_factory=dict)

    def add_checks(self, function: Function) -> None:
        """Add the guards that hold for every configuration whose checks, in `function`, passed."""
        self.checking.add(function)
        self.checks += [
            part for part in guard_parts(elsewhere(function.completes, function)) if not isinstance(part, bool)
        ]

    def finish(self) -> list[Use]:
        """Return the reachable uses with their complete guards."""
        swallowed = {draft.use.path for draft in self.drafts if draft.swallowed}
        drafts = [draft for draft in self.drafts if draft.use.kind != "end"]
        ends = [draft for draft in self.drafts if draft.use.kind == "end" and draft.use.path in swallowed]
        ends.sort(key=lambda draft: (draft.function not in self.checking, *draft.use.site[:2], draft.use.path))
        for path in sorted(swallowed):
            drafts += [draft for draft in ends if draft.use.path == path][:MOST_ENDS]
        for use, function in [(draft.use, draft.function) for draft in drafts if draft.kept]:
            if end := self.rethrows.get(use.site.path):
                drafts.append(PendingUse(end._replace(path=use.path, guard=use.guard, here=use.here), function))
        return [use for use in map(self._finished, drafts) if use.guard is not False]

    def _finished(self, draft: PendingUse) -> Use:
        use = draft.use
        reached = all_of(self.reach(draft.function), use.guard)
        arguments = use.arguments
        if arguments is not None:
            passed = [pair for pair in arguments.keywords if self._checked(reached, pair[1]) is not False]
            arguments = arguments._replace(keywords=tuple(passed))
        checks = self._checks_on(reached, *(guard for _, guard in (arguments.keywords if arguments else ())))
        is_check = use.kind == "end" and draft.function in self.checking
        checks = [] if is_check else checks
        possible = is_check or self._checked(reached) is not False
        guard = about_te(all_of(reached, *filter(names_te, checks)), keep=use.here) if possible else False
        around = [] if use.kind == "end" else self._caught_around(draft.function)
        swallowed = (*draft.swallowed, *(error for error in around if error not in {*draft.swallowed, *draft.refused}))
        effect = draft.effect or use.effect or "by its callers" * bool(around)
        refused = tuple(draft.refused) or use.refused
        use = use._replace(guard=guard, arguments=arguments)
        return use._replace(swallowed=swallowed, refused=refused, effect=effect, fallback=draft.fallback)

    def _caught_around(self, function: Function | None) -> Sequence[str]:
        """Return the exceptions that are caught around each call of a private function, there or by its callers."""
        if function not in self._caught:
            self._caught[function] = ()  # recursion adds nothing
            calls = self._calls_to(function)
            caught = [() if call.kept else (*call.swallowed, *self._caught_around(call.function)) for call in calls]
            self._caught[function] = [error for error in CATCHES if calls and all(error in part for part in caught)]
        return self._caught[function]

    def _calls_to(self, function: Function | None) -> list[PendingUse]:
        """Return the calls of a private function; none where it may be called from elsewhere."""
        name = function.name.rpartition(".")[2] if function and function.is_private else ""
        return self.calls.get(name, []) if name not in self.handed_on else []

    def _checked(self, *guards: Guard) -> Guard:
        """Return the guards and the checks on their configuration; False if the checks exclude them."""
        return all_of(*guards, *self._checks_on(*guards))

    def _checks_on(self, *guards: Guard) -> list[Guard]:
        conditions = {leaf for guard in guards for leaf in leaves(guard) if isinstance(leaf, Config)}
        return [check for check in self.checks if not leaves(check).isdisjoint(conditions)]

    def reach(self, function: Function | None) -> Guard:
        """Return the guard under which a function runs."""
        if function is None:
            return True
        if function not in self._reached:
            self._reached[function] = True  # recursion adds nothing
            parts = [function.guard, self.reach(function.outer)]
            for blueprint in function.blueprints:
                constructor = self.constructors.get(blueprint)
                if constructor is not None:
                    parts.append(elsewhere(about_te(constructor.completes), constructor))
            if calls := self._calls_to(function):
                sites = [(self.reach(call.function), elsewhere(call.use.guard, call.function)) for call in calls]
                parts.append(any_of(*(all_of(reached, guard) for reached, guard in sites)))
            self._reached[function] = about_te(all_of(*parts), keep=True)
        return self._reached[function]


@dataclass(frozen=True)
class Recorder:
    """Records what a body does. `function` is the one that is read, `base` the guard of a class in it."""

    reaches: Reaches
    function: Function | None = None
    base: Guard = True

    def reached(self, guard: Guard) -> Guard:
        """Return the guard of a statement in the function, from its guard in the body."""
        return all_of(self.base, guard)

    def record(self, use: Use, attempts: Iterable[list[PendingUse]]) -> None:
        """Record a use that may be reached, also for each of the try statements around it."""
        if use.guard is not False:
            draft = PendingUse(use, self.function)
            for drafts in (self.reaches.drafts, *attempts):
                drafts.append(draft)

    def mention(self, name: str, guard: Guard, attempts: Iterable[list[PendingUse]], *, called: bool) -> None:
        """Record the callers of a private function, or that it is passed as a value."""
        if called:
            call = PendingUse(Use("call", name, NOWHERE, self.reached(guard)), self.function)
            for drafts in (self.reaches.calls.setdefault(name, []), *attempts):
                drafts.append(call)
        else:
            self.reaches.handed_on.add(name)


def elsewhere(guard: Guard, function: Function | None) -> Guard:
    """Return a guard for use outside its function: conditions on local names get the function's name."""
    if isinstance(guard, (AllOf, AnyOf)):
        return rejoined(guard, (elsewhere(part, function) for part in guard.parts))
    if isinstance(guard, Not):
        return negate(elsewhere(guard.part, function))
    if function is None or not isinstance(guard, Config) or not is_local(guard.text):
        return guard
    return Config(f"{guard.text} in {function.name}")


def is_local(text: str) -> bool:
    """Return whether a condition contains a local name of its function."""
    if text.endswith(" is installed"):
        return False
    tops = [name.partition(".")[0] for name in NAME.findall(text)]
    return any(not (top in KNOWN_EVERYWHERE or top.endswith("config") or top[0].isupper()) for top in tops)


def about_te(guard: Guard, keep: Guard = False) -> Guard:
    """Return the parts of a guard that depend on TE, and the parts of `keep`.

    `keep` True keeps all parts except alternatives that do not depend on TE.
    """
    conditions = guard_parts(keep) if not isinstance(keep, bool) else ()
    parts = guard_parts(guard)
    return all_of(
        *(part for part in parts if names_te(part) or part in conditions or (keep is True and type(part) is not AnyOf))
    )
