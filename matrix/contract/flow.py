"""The guards on the way to a statement: of the forks around it, of earlier statements, of imports that did not fail."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field

from matrix.contract.definition import dotted
from matrix.contract.guard import Config, Guard, all_of, any_of, negate
from matrix.contract.reachability import PendingUse
from matrix.contract.scope import ClassDefinition, FunctionDefinition, Scope, bound_names, walk_all
from matrix.contract.uses import CATCHES
from matrix.contract.value import ANYTHING, Choice, Literal, Outside, Reference, values_of

SENDING = ("append", "put", "put_nowait", "send", "set_exception")  # methods that keep their argument


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
