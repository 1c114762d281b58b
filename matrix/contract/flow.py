"""Follow the statements of one body: the guard under which each is reached, and the values of names after a fork."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from matrix.contract.definition import dotted
from matrix.contract.guard import Config, Guard, all_of, any_of, names_te, negate
from matrix.contract.invocation import Invocations
from matrix.contract.reach import PendingUse
from matrix.contract.usage import CATCHES
from matrix.contract.value import (  # fmt: skip
    ANYTHING,
    UNKNOWN,
    Choice,
    ClassDefinition,
    FunctionDefinition,
    Instance,
    Literal,
    Outside,
    Reference,
    gather,
    merge,
    only,
    under,
)

MOST_ROUNDS = 16  # iterations of a loop over constants that are read one by one; the longest in any release has 4
Scope = dict[str, Choice]


@dataclass
class Attempt:
    """A try statement whose body is being read. `depth` is the length of the path when it was entered."""

    handlers: list[ast.ExceptHandler]
    depth: int
    failures: dict[int, list[Guard]] = field(default_factory=dict)  # handler -> the guards under which it is entered
    drafts: list[PendingUse] = field(default_factory=list)

    def catches(self, error: str) -> int | None:
        """Return the number of the handler that catches an exception."""
        for number, handler in enumerate(self.handlers):
            types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
            names = {dotted(kind).rpartition(".")[2] if kind else "" for kind in types}
            if names & {error, *CATCHES[error], "Exception", "BaseException", ""}:
                return number
        return None

    def failed(self) -> Guard:
        """Return the guard under which the body did not reach its end."""
        return any_of(*(guard for guards in self.failures.values() for guard in guards))


class Flow(Invocations):
    """Reads statements one after another.

    `path` holds the guards of the forks around the current statement, outermost first; the last one includes the
    conditions from earlier statements of the same block: asserts, early returns, imports that did not fail.
    """

    def __init__(self) -> None:
        self.path: list[Guard] = [True]
        self.attempts: list[Attempt] = []
        self.returns: list[tuple[Guard, Choice]] = []

    def here(self, since: int = 0) -> Guard:
        """Return the guard under which the current statement is reached, from the `since`th fork inwards."""
        successes = [negate(attempt.failed()) for attempt in self.attempts if attempt.depth >= since]
        return all_of(*self.path[since:], *successes)

    def assume_guard(self, guard: Guard) -> None:
        """Restrict the rest of this block to where `guard` holds."""
        self.path[-1] = all_of(self.path[-1], guard)

    def value_where(self, node: ast.expr, guard: Guard) -> Choice:
        """Evaluate a part of an expression that Python evaluates only where `guard` holds."""
        self.path += [guard, True]
        choice = self.value(node)
        del self.path[-2:]
        return choice

    def may_fail(self, error: str, success: Guard) -> None:
        """Fork: go on where `success` holds; a handler that catches `error` is entered where it does not."""
        attempt, number = self.catcher(error)
        if attempt is None:
            # Other packages count as installed: their absence breaks no contract with TE.
            self.assume_guard(True if isinstance(success, Config) else success)
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

    def block(self, statements: Sequence[ast.stmt]) -> None:
        """Read statements up to the first unreachable one."""
        for statement in statements:
            if self.path[-1] is False:
                return
            read: Callable[[ast.stmt], None] | None = getattr(self, f"_do_{type(statement).__name__.lower()}", None)
            if read is not None:
                read(statement)
            else:
                self.parts(statement)

    def branch(self, statements: Sequence[ast.stmt], guard: Guard, known: Scope | None = None) -> tuple[Guard, Scope]:
        """Read a branch in a copy of the names; return the guard under which its end is reached, and the names.

        `known` are names with the values that they have in this branch only.
        """
        if guard is False:
            return False, {}
        before = self.names.own
        self.names.own = {**before, **(known or {})}
        self.path += [guard, True]
        self.block(statements)
        end = self.path.pop()
        self.path.pop()
        after, self.names.own = self.names.own, before
        for name, choice in (known or {}).items():
            if after[name] is choice:
                after[name] = before.get(name) or self._before(name) or UNKNOWN
        return end, after

    def join(self, guard: Guard, first: Scope, second: Scope) -> None:
        """Go on with the names of `first` where `guard` holds, those of `second` where it does not."""
        joined: Scope = {}
        for name in dict.fromkeys([*first, *second]):
            one, other = first.get(name), second.get(name)
            if one is None or other is None:
                # Bound in one branch only: in the other it has the value of the enclosing body, or none.
                before = self._before(name)
                one, other = one or before or (), other or before or ()
            joined[name] = merge(guard, one, other) if one and other else _bound_where(guard, one, other)
        self.names.own = joined

    def _before(self, name: str) -> Choice | None:
        """Return the value of a name that this body has not bound; `self.x` is an attribute of the instance."""
        owner, _, attribute = name.partition(".")
        if attribute:
            known = self.names.find(owner) or ()
            return next((self.held(value, attribute) for _, value in known if isinstance(value, Instance)), None)
        return self.names.around.find(name) if self.names.around else None

    def bind(self, target: ast.expr, value: ast.expr | None, choice: Choice) -> None:
        """Bind a target of an assignment."""
        raise NotImplementedError

    def narrowed(self, test: ast.expr) -> Scope:
        """Return the names that are known better where a condition holds."""
        raise NotImplementedError

    # ------------------------------------------------------------- statements

    def _do_if(self, node: ast.If) -> None:
        condition = False if dotted(node.test).endswith("TYPE_CHECKING") else self.truth(node.test)
        end, names = self.branch(node.body, condition, self.narrowed(node.test))
        other_end, other_names = self.branch(node.orelse, negate(condition))
        if end is not False and other_end is not False:
            self.join(condition, names, other_names)
        elif end is not False or other_end is not False:
            self.names.own = other_names if end is False else names
        if not (end is True and other_end is True):
            self.assume_guard(any_of(all_of(condition, end), all_of(negate(condition), other_end)))

    def _do_assert(self, node: ast.Assert) -> None:
        self.assume_guard(self.truth(node.test))

    def _do_raise(self, node: ast.Raise) -> None:
        self.parts(node)
        self.path[-1] = False

    def _do_return(self, node: ast.Return) -> None:
        self.returns.append((self.here(), self.value(node.value) if node.value else only(Literal(None))))
        self.path[-1] = False

    def _do_break(self, node: ast.Break | ast.Continue) -> None:
        self.path[-1] = False

    _do_continue = _do_break

    def _do_for(self, node: ast.For | ast.AsyncFor) -> None:
        choice = self.value(node.iter)
        rounds = choice[0][1].value if len(choice) == 1 and isinstance(choice[0][1], Literal) else None
        if isinstance(rounds, tuple) and len(rounds) <= MOST_ROUNDS:
            for item in rounds:
                self.bind(node.target, None, only(Literal(item)))
                self.block(node.body)
        elif isinstance(node.iter, (ast.Tuple, ast.List)) and len(node.iter.elts) <= MOST_ROUNDS and not _jumps(node):
            for element in node.iter.elts:
                self.bind(node.target, element, self.value(element))
                self.block(node.body)
        else:
            self.bind(node.target, None, UNKNOWN)
            self._loop(node.body)
        self.block(node.orelse)

    _do_asyncfor = _do_for

    def _do_while(self, node: ast.While) -> None:
        self.value(node.test)
        self._loop(node.body)
        self.block(node.orelse)

    def _loop(self, body: Sequence[ast.stmt]) -> None:
        """Read a loop body; names then have the values after an iteration or, without an iteration, before it."""
        _, names = self.branch(body, True)
        self.join(Config("a loop"), names, self.names.own)

    def _do_with(self, node: ast.With | ast.AsyncWith) -> None:
        for item in node.items:
            self.value(item.context_expr)
            if item.optional_vars is not None:
                self.bind(item.optional_vars, None, UNKNOWN)
        self.block(node.body)

    _do_asyncwith = _do_with

    def _do_match(self, node: ast.Match) -> None:
        self.value(node.subject)
        for case in node.cases:
            _, names = self.branch(case.body, Config("a case"))
            self.join(Config("a case"), names, self.names.own)

    # ------------------------------------------------------------- exceptions

    def _do_try(self, node: ast.Try) -> None:
        attempt = Attempt(node.handlers, len(self.path))
        self.attempts.append(attempt)
        end, names = self.branch(node.body, True)
        self.attempts.pop()
        failed = attempt.failed()
        handled: list[tuple[Guard, Guard, Scope]] = []  # guard of its entry, guard of its end, names
        tried = set(bound_names(node.body))
        for number, handler in enumerate(node.handlers):
            # A call may fail for reasons of its own, so a handler may be entered at any time; only a handler that an
            # import or an attribute of TE decides is followed further.
            decided = number in attempt.failures
            guard = any_of(*attempt.failures[number]) if decided else Config("an exception")
            handler_end, handler_names = self.branch(handler.body, guard)
            self._record_effect(attempt, number, handler_names, tried)
            if decided:
                handled.append((guard, handler_end, handler_names))
        self.names.own = names
        self.path += [negate(failed), end]
        self.block(node.orelse)
        end = self.path.pop()
        self.path.pop()
        self._rejoin(failed, end, handled)
        self.block(node.finalbody)

    _do_trystar = _do_try

    def _rejoin(self, failed: Guard, end: Guard, handled: list[tuple[Guard, Guard, Scope]]) -> None:
        """Go on after a try statement: from the end of its body, or of a handler."""
        reached = end is not False
        ends = [all_of(negate(failed), end)]
        for guard, handler_end, names in handled:
            ends.append(all_of(guard, handler_end))
            if handler_end is False:
                continue
            if reached:
                self.join(negate(guard), self.names.own, names)
            else:
                self.names.own, reached = names, True
        self.assume_guard(any_of(*ends))

    def _record_effect(self, attempt: Attempt, number: int, names: Scope, tried: set[str]) -> None:
        """Record in the uses of a try body the effect of this handler on their failure."""
        body = attempt.handlers[number].body
        last = body[-1]
        if isinstance(last, ast.Raise) and last.exc is None:
            return  # it re-raises
        bound = {name: names[name] for name in bound_names(body) if name in names and name in tried}
        effect = ", ".join(f"{name} = {_plain(choice)}" for name, choice in list(bound.items())[:3]) or "nothing"
        fallback = any(isinstance(value, Reference) for choice in bound.values() for _, value in choice)
        for draft in attempt.drafts:
            # An inner handler comes first.
            handled = {*draft.swallowed, *draft.refused}
            caught = [error for error in CATCHES if attempt.catches(error) == number and error not in handled]
            if caught and isinstance(last, ast.Raise):
                draft.refused += caught
            elif caught:
                draft.swallowed += caught
                draft.effect = draft.effect or effect
                draft.fallback = draft.fallback or fallback


def _jumps(node: ast.For | ast.AsyncFor) -> bool:
    return any(isinstance(part, (ast.Break, ast.Continue, ast.Starred)) for part in ast.walk(node))


def _bound_where(guard: Guard, one: Choice, other: Choice) -> Choice:
    """Return the values of a name that one branch binds, guarded by that branch if TE decides which is taken."""
    if not names_te(guard):
        return one or other
    return gather(under(guard, one) if one else under(negate(guard), other))


def bound_names(statements: Sequence[ast.stmt]) -> list[str]:
    """Return the names that statements bind."""
    names: dict[str, None] = {}
    for node in (node for statement in statements for node in ast.walk(statement)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names[node.id] = None
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names.update({alias.asname or alias.name.partition(".")[0]: None for alias in node.names})
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names[node.name] = None
    return list(names)


def _plain(choice: Choice) -> str:
    """Write the value that a handler assigns instead."""
    value = choice[0][1] if choice else ANYTHING
    if isinstance(value, Literal):
        return repr(value.value)
    if isinstance(value, (Outside, Reference)):
        return value.path.replace(":", ".")
    return "its own" if isinstance(value, (FunctionDefinition, ClassDefinition)) else "..."
