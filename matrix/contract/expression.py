"""Read the expressions of a consuming package: their values, and the guards under which conditions hold."""

from __future__ import annotations

import ast
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable

from matrix.contract.definition import dotted
from matrix.contract.guard import Config, Guard, Takes, Unclear, all_of, any_of, negate
from matrix.contract.provider import Provider
from matrix.contract.usage import Arguments
from matrix.contract.value import (  # fmt: skip
    ANYTHING,
    OF_TE,
    UNKNOWN,
    Anything,
    Choice,
    ClassDefinition,
    Fact,
    FunctionDefinition,
    InPackage,
    Instance,
    Keywords,
    Literal,
    Method,
    Names,
    Outside,
    ParametersOf,
    Reference,
    RunningVersion,
    Value,
    compare_versions,
    concerns_te,
    gather,
    is_none,
    merge,
    only,
    truth_of,
    under,
)

LONGEST_TEXT = 90  # characters of a condition; a longer one is cut and ends with a digest
PARAMETER_LISTS = ("parameters", "args", "kwonlyargs")
COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.GtE: ">=", ast.Gt: ">", ast.LtE: "<=", ast.Lt: "<", ast.Eq: "==", ast.NotEq: "!=",
}  # fmt: skip
WORDS: dict[type[ast.cmpop], str] = {
    ast.In: "in",
    ast.NotIn: "not in",
    ast.Is: "is",
    ast.IsNot: "is not",
    **COMPARISONS,
}


def shown(node: ast.AST) -> str:
    """Write a condition in short form. Equal texts are equal conditions, so every omission is marked by a digest."""
    return shortened(_shown(node))


def shortened(text: str) -> str:
    """Cut a text that is too long for a report; a digest keeps it distinct from others with the same start."""
    if len(text) <= LONGEST_TEXT:
        return text
    return f"{text[: LONGEST_TEXT - 9]}...{_digest(text)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:6]


def _shown(node: ast.AST) -> str:
    if isinstance(node, (ast.Name, ast.Attribute)) and dotted(node):
        return dotted(node)
    if isinstance(node, ast.Constant):
        return repr(node.value)
    if isinstance(node, ast.Call) and dotted(node.func):
        arguments = [*map(_shown, node.args), *(f"{keyword.arg}={_shown(keyword.value)}" for keyword in node.keywords)]
        return f"{dotted(node.func)}({', '.join(arguments)})"
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return f"not {_shown(node.operand)}"
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return f"{_shown(node.left)} {WORDS[type(node.ops[0])]} {_shown(node.comparators[0])}"
    if isinstance(node, ast.Subscript):
        return f"{_shown(node.value)}[{_shown(node.slice)}]"
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        return f"({', '.join(map(_shown, node.elts))})"
    return f"...{_digest(ast.dump(node))}"


def written(choice: Choice, node: ast.AST) -> str:
    """Write an operand by its name at its origin, so that one condition has the same text everywhere."""
    if len(choice) == 1 and isinstance(choice[0][1], Anything) and choice[0][1].text:
        return choice[0][1].text
    return shown(node)


class Expressions(ABC):
    """Evaluates expressions in the names of one body. The subclass records the uses."""

    names: Names
    provider: Provider

    @abstractmethod
    def use(
        self,
        kind: str,
        path: str,
        node: ast.AST,
        guard: Guard,
        arguments: Arguments | None = None,
        *,
        bound: str = "",
        signature: str = "",
    ) -> None:
        """Record a use that happens where `guard` holds, in addition to the guard of its statement."""

    @abstractmethod
    def value_where(self, node: ast.expr, guard: Guard) -> Choice:
        """Evaluate a part of an expression that Python evaluates only where `guard` holds."""

    @abstractmethod
    def mention(self, name: str, *, called: bool) -> None:
        """Record that a name or attribute is called, or passed as a value."""

    @abstractmethod
    def look_up(self, module: str, name: str) -> Choice:
        """Return the values of `name` in another module of the package ("" for the module itself)."""

    @abstractmethod
    def _call(self, node: ast.Call) -> Choice: ...

    def value(self, node: ast.expr | None) -> Choice:
        """Return the values of an expression, and record its uses."""
        if node is None:
            return UNKNOWN
        read: Callable[[ast.expr], Choice] | None = getattr(self, f"_{type(node).__name__.lower()}", None)
        if read is not None:
            return read(node)
        return only(OF_TE if any(concerns_te(value) for value in self.parts(node)) else ANYTHING)

    def parts(self, node: ast.AST) -> list[Value]:
        """Return the values of all expressions in a node that has no reader of its own."""
        found: list[Value] = []
        for child in ast.iter_child_nodes(node):
            found += [value for _, value in self.value(child)] if isinstance(child, ast.expr) else self.parts(child)
        return found

    def truth(self, node: ast.expr) -> Guard:
        """Return the guard under which a condition holds."""
        return truth_of(self.value(node), shown(node))

    # ------------------------------------------------------------------ names

    def _constant(self, node: ast.Constant) -> Choice:
        return only(Literal(node.value))

    def _tuple(self, node: ast.Tuple | ast.List) -> Choice:
        items = [self.value(element) for element in node.elts]
        known = [item[0][1] for item in items if len(item) == 1]
        if len(known) == len(items) and all(isinstance(value, Literal) for value in known):
            return only(Literal(tuple(value.value for value in known if isinstance(value, Literal))))
        return UNKNOWN

    _list = _tuple

    def _name(self, node: ast.Name, *, called: bool = False) -> Choice:
        self.mention(node.id, called=called)
        choice = self.names.find(node.id)
        return only(Outside(node.id)) if choice is None else self.settled(choice)

    def settled(self, choice: Choice) -> Choice:
        """Replace names of other modules by their values there."""
        if not any(isinstance(value, InPackage) and value.name for _, value in choice):
            return choice
        found: list[tuple[Guard, Value]] = []
        for guard, value in choice:
            if isinstance(value, InPackage) and value.name:
                found += under(guard, self.settled(self.look_up(value.module, value.name)))
            else:
                found.append((guard, value))
        return gather(found)

    def _attribute(self, node: ast.Attribute, *, whole: bool = True, called: bool = False) -> Choice:
        """Read `owner.name`. `whole`: no longer chain contains it; then reading a TE name is a use unless `called`."""
        if isinstance(node.ctx, ast.Load):
            self.mention(node.attr, called=called)
        kept = self.names.find(dotted(node)) if isinstance(node.value, ast.Name) else None
        if kept is not None:
            return self.settled(kept)
        base = node.value
        owners = self._attribute(base, whole=False) if isinstance(base, ast.Attribute) else self.value(base)
        found: list[tuple[Guard, Value]] = []
        for guard, owner in owners:
            of_owner = self._instance(owner, node.attr, called) if isinstance(owner, Instance) else None
            if isinstance(owner, Anything) and owner.of_class:
                path = Reference(owner.of_class).attribute(node.attr).path
                if called:
                    of_owner = only(Method(path))
                elif node.attr.startswith("_") and isinstance(node.ctx, ast.Load):
                    self.use("method", path, node, guard, bound="object")
            for inner, value in of_owner or self.attribute_of(owner, node.attr):
                if whole and not called and isinstance(value, Reference) and isinstance(node.ctx, ast.Load):
                    bound = owner.name if isinstance(owner, Instance) else ""
                    self.use("attribute", value.path, node, all_of(guard, inner), bound=bound)
                found.append((all_of(guard, inner), value))
        return gather(found)

    def _instance(self, owner: Instance, name: str, called: bool) -> Choice:
        """Read an attribute of self or super()."""
        if owner.parent or (called and name not in owner.blueprint.attributes):
            return self.inherited(owner, name) or UNKNOWN
        return self.held(owner, name)

    def held(self, owner: Instance, name: str) -> Choice:
        """Return the values of an instance attribute: known if only the constructor sets it, else just named."""
        blueprint = owner.blueprint
        if name in blueprint.attributes:
            return blueprint.attributes[name]
        of = "config" if blueprint.is_config else "self"
        return only(Anything(name if name.endswith("config") else f"{of}.{name}"))

    def attribute_of(self, owner: Value, name: str) -> Choice:
        """Return the values of an attribute of a value."""
        if isinstance(owner, Reference):
            return only(self.provided(owner.attribute(name)))
        if isinstance(owner, Outside):
            return only(Outside(f"{owner.path}.{name}"))
        if isinstance(owner, InPackage):
            return self.settled(self.look_up(owner.module, name))
        if isinstance(owner, ParametersOf):
            return only(owner if name in PARAMETER_LISTS else OF_TE)
        if isinstance(owner, ClassDefinition):
            return self.inherited(Instance(owner), name) or UNKNOWN
        if isinstance(owner, Anything) and owner.text and not owner.of_te:
            # Every configuration is written `config`, whatever its variable is.
            return only(Anything(f"{'config' if owner.text.endswith('config') else owner.text}.{name}"))
        return only(OF_TE if concerns_te(owner) else ANYTHING)

    def provided(self, reference: Reference) -> Value:
        """Return the running version for a name that holds the provider's version, else the reference itself."""
        return RunningVersion(parsed=False) if reference.path in self.provider.version_paths else reference

    def inherited(self, owner: Instance, name: str) -> Choice:
        """Return a method, looked up in the order of the bases; () if no class has it."""
        if not owner.parent and name in owner.blueprint.methods:
            return owner.blueprint.methods[name]
        if not owner.parent and name in owner.blueprint.assigned:
            return UNKNOWN
        found: list[tuple[Guard, Value]] = []
        for base in owner.blueprint.bases:
            for guard, value in self.settled(base):
                if isinstance(value, ClassDefinition):
                    found += under(guard, self.inherited(Instance(value), name))
                else:  # a class outside the package may define it
                    found.append((guard, value.attribute(name) if isinstance(value, Reference) else ANYTHING))
            if found:
                break
        return gather(found)

    def extends_te(self, blueprint: ClassDefinition) -> bool:
        """Return whether a class extends one of TE's."""
        bases = [value for base in blueprint.bases for _, value in self.settled(base)]
        return any(
            isinstance(base, Reference) or (isinstance(base, ClassDefinition) and self.extends_te(base))
            for base in bases
        )

    # ------------------------------------------------------------- conditions

    def _boolop(self, node: ast.BoolOp) -> Choice:
        is_and = isinstance(node.op, ast.And)
        choices: list[Choice] = []
        truths: list[Guard] = []
        for value in node.values:
            before = all_of(*truths) if is_and else negate(any_of(*truths))
            choices.append(self.value_where(value, before))
            truths.append(truth_of(choices[-1], shown(value)))
        if is_and:
            return only(Fact(all_of(*truths)))
        if any(
            isinstance(value, (Reference, Keywords, FunctionDefinition)) for choice in choices for _, value in choice
        ):
            return merge(truths[0], choices[0], choices[-1])  # `given or default`
        return only(Fact(any_of(*truths)))

    def _unaryop(self, node: ast.UnaryOp) -> Choice:
        if isinstance(node.op, ast.Not):
            return only(Fact(negate(self.truth(node.operand))))
        self.value(node.operand)
        return UNKNOWN

    def _ifexp(self, node: ast.IfExp) -> Choice:
        condition = self.truth(node.test)
        first, second = self.value_where(node.body, condition), self.value_where(node.orelse, negate(condition))
        return merge(condition, first, second)

    def _compare(self, node: ast.Compare) -> Choice:
        left, right = self.value(node.left), self.value(node.comparators[0])
        op = node.ops[0]
        text = f"{written(left, node.left)} {WORDS[type(op)]} {written(right, node.comparators[0])}"
        text = shortened(text)
        if len(node.ops) > 1:
            further = [value for part in node.comparators[1:] for _, value in self.value(part)]
            known = [value for choice in (left, right) for _, value in choice] + further
            return only(Fact(Unclear(shown(node)) if any(map(concerns_te, known)) else Config(shown(node))))
        if isinstance(op, (ast.Is, ast.IsNot)) and right == only(Literal(None)):
            absent = is_none(left, written(left, node.left))
            return only(Fact(absent if isinstance(op, ast.Is) else negate(absent)))
        guards = [
            all_of(guard, other_guard, self._compared(op, one, other, text))
            for guard, one in left
            for other_guard, other in right
        ]
        return only(Fact(any_of(*guards)))

    def _compared(self, op: ast.cmpop, left: Value, right: Value, text: str) -> Guard:
        if isinstance(op, (ast.In, ast.NotIn)) and isinstance(left, Literal):
            if isinstance(right, ParametersOf):
                takes = Takes(right.path, str(left.value))
                return takes if isinstance(op, ast.In) else negate(takes)
            if isinstance(right, Literal) and isinstance(right.value, tuple):
                return (left.value in right.value) is isinstance(op, ast.In)
        if type(op) in COMPARISONS:
            guard = compare_versions(COMPARISONS[type(op)], left, right)
            if guard is not None:
                return guard
            if isinstance(left, Literal) and isinstance(right, Literal) and isinstance(op, (ast.Eq, ast.NotEq)):
                return (left.value == right.value) is isinstance(op, ast.Eq)
        if concerns_te(left) or concerns_te(right):
            return Unclear(text)
        # `x != 1` becomes `not x == 1`, so that the two exclude each other.
        if isinstance(op, (ast.NotEq, ast.NotIn, ast.IsNot)):
            positive = {ast.NotEq: "!= ", ast.NotIn: "not in ", ast.IsNot: "is not "}[type(op)]
            return negate(Config(text.replace(positive, positive.replace("not ", "").replace("!=", "=="), 1)))
        return Config(text)
