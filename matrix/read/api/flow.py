"""The guard under which a line of the consuming package is reached.

Within its function: the forks around it, earlier statements of its blocks, imports that did not fail (Flow). From the
rest of the package (Reaches):
- A method runs on an instance, so its constructor has returned: `if TE < 2.14: raise` there guards every method.
- A private function runs under the guards of its calls, unless it is passed as a value.
- A configuration has passed its own checks: `config.x` never occurs with a TE that its __post_init__ rejects.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from matrix.read.api.definition import dotted
from matrix.read.api.guard import (
    INSTALLED,
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
from matrix.read.api.provider import CATCHES, NOWHERE, Use
from matrix.read.api.scope import ClassDefinition, FunctionDefinition, Scope, bound_names, walk_all
from matrix.read.api.value import ANYTHING, Choice, Literal, Outside, Reference, values_of

KNOWN_EVERYWHERE = ("self", "torch", "os", "isinstance", "len", "is", "in", "not", "installed")  # first parts of names
MOST_ENDS = 3  # recorded lines that raise because of one missing path; the first that is reached is shown
NAME = re.compile(r"(?<![\w.'\"])[A-Za-z_][\w.]*(?![\w'\"])")
SENDING = ("append", "put", "put_nowait", "send", "set_exception")  # methods that keep their argument


# ----------------------------------------------------------------- functions


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
        parts = guard_parts(elsewhere(function.completes, function))
        self.checks += [part for part in parts if not isinstance(part, bool)]

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

    def record(self, use: Use, attempts: Iterable[Attempt]) -> None:
        """Record a use that may be reached, also for each of the try statements around it."""
        if use.guard is not False:
            self._add(PendingUse(use, self.function), self.reaches.drafts, attempts)

    def mention(self, name: str, flow: Flow, *, called: bool) -> None:
        """Record the callers of a private function, or that it is passed as a value."""
        if called:
            call = PendingUse(Use("call", name, NOWHERE, self.reached(flow.here())), self.function)
            self._add(call, self.reaches.calls.setdefault(name, []), flow.attempts)
        else:
            self.reaches.handed_on.add(name)

    def _add(self, draft: PendingUse, drafts: list[PendingUse], attempts: Iterable[Attempt]) -> None:
        for collected in (drafts, *(attempt.drafts for attempt in attempts)):
            collected.append(draft)


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
    if text.endswith(INSTALLED):
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


# ------------------------------------------------------------ one function


@dataclass
class Attempt:
    """A try statement whose body is being read. `depth` is the length of the path when it was entered."""

    handlers: Sequence[ast.ExceptHandler]
    depth: int
    failures: dict[int, list[Guard]] = field(default_factory=dict)  # handler -> the guards under which it is entered
    drafts: list[PendingUse] = field(default_factory=list)

    def catches(self, error: str) -> int | None:
        """Return the number of the handler that catches an exception."""
        for number, handler in enumerate(self.handlers):
            types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
            names = {dotted(kind).rpartition(".")[2] if kind else "" for kind in types}
            if names & {error, *CATCHES.get(error, ()), "Exception", "BaseException", ""}:
                return number
        return None

    def failed(self) -> Guard:
        """Return the guard under which the body did not reach its end."""
        return any_of(*(guard for guards in self.failures.values() for guard in guards))

    def entered(self, number: int) -> Guard:
        """Return the guard under which a handler is entered; a call may also fail for reasons of its own."""
        return any_of(*self.failures[number]) if number in self.failures else Config("an exception")

    def record_effect(self, number: int, names: Scope, tried: set[str]) -> None:
        """Record in the uses of the body the effect of a handler on their failure.

        `names` have the values at the end of the handler, `tried` are bound in the body.
        """
        body = self.handlers[number].body
        end = body[-1]
        if isinstance(end, ast.Raise) and end.exc is None:
            return  # it re-raises
        bound = {name: names[name] for name in bound_names(body) if name in names and name in tried}
        effect = ", ".join(f"{name} = {_plain(choice)}" for name, choice in list(bound.items())[:3]) or "nothing"
        fallback = any(isinstance(value, Reference) for value in values_of(bound.values()))
        for draft in self.drafts:
            # An inner handler comes first.
            handled = {*draft.swallowed, *draft.refused}
            caught = [error for error in CATCHES if self.catches(error) == number and error not in handled]
            if caught and isinstance(end, ast.Raise):
                draft.refused += caught
            elif caught:
                draft.swallowed += caught
                draft.kept = draft.kept or _keeps(self.handlers[number])
                draft.effect = draft.effect or effect
                draft.fallback = draft.fallback or fallback


class Flow:
    """The way to the current statement of a body.

    `path` holds the guards of the forks around the statement, outermost first; the last one includes the conditions
    from earlier statements of the same block: asserts, early returns, imports that did not fail. `attempts` are the try
    statements around it.
    """

    def __init__(self) -> None:
        self.path: list[Guard] = [True]
        self.attempts: list[Attempt] = []

    def here(self, since: int = 0) -> Guard:
        """Return the guard under which the current statement is reached, from the `since`th fork inwards."""
        successes = [negate(attempt.failed()) for attempt in self.attempts if attempt.depth >= since]
        return all_of(*self.path[since:], *successes)

    def assume(self, guard: Guard) -> None:
        """Restrict the rest of this block to where `guard` holds."""
        self.path[-1] = all_of(self.path[-1], guard)

    def fork(self, guard: Guard, start: Guard = True) -> None:
        """Enter a branch where `guard` holds; `start` is known at its first statement."""
        self.path += [guard, start]

    def leave(self) -> Guard:
        """Leave a branch; return the guard under which its end is reached."""
        end = self.path.pop()
        self.path.pop()
        return end

    def may_fail(self, error: str, success: Guard) -> None:
        """Fork: go on where `success` holds; a handler that catches `error` is entered where it does not."""
        attempt, number = self.catcher(error)
        if attempt is None:
            # Other packages count as installed: their absence breaks no contract with TE.
            self.assume(True if isinstance(success, Config) else success)
            return
        failure = all_of(self.here(attempt.depth), negate(success))
        if failure is not False:
            attempt.failures.setdefault(number, []).append(failure)

    def catcher(self, error: str) -> tuple[Attempt | None, int]:
        """Return the try statement and the handler that catch an exception of the current statement."""
        for attempt in reversed(self.attempts):
            number = attempt.catches(error)
            if number is not None:
                return attempt, number
        return None, 0


def _keeps(handler: ast.ExceptHandler) -> bool:
    """Return whether a handler stores, returns or sends the exception itself, by itself or in a tuple."""
    values: list[ast.expr | None] = []
    for part in walk_all(handler.body) if handler.name else ():
        if isinstance(part, (ast.Assign, ast.Return)):
            values.append(part.value)
        elif isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and part.func.attr in SENDING:
            values += part.args
    items = [item for value in values for item in (value.elts if isinstance(value, ast.Tuple) else [value])]
    return any(isinstance(item, ast.Name) and item.id == handler.name for item in items)


def _plain(choice: Choice) -> str:
    """Write the value that a handler assigns instead."""
    value = choice[0][1] if choice else ANYTHING
    if isinstance(value, Literal):
        return repr(value.value)
    if isinstance(value, (Outside, Reference)):
        return value.path.replace(":", ".")
    return "its own" if isinstance(value, (FunctionDefinition, ClassDefinition)) else "..."
