"""Read the names, constants and conditions of a consuming package, and record its uses of the provider."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Final, Protocol

from matrix.read.api.definition import ORDERS, WORDS, dotted, function_entry, shortened, shown
from matrix.read.api.flow import Flow, Reaches, Recorder
from matrix.read.api.guard import (
    Config,
    Guard,
    Loads,
    Offers,
    Takes,
    Unclear,
    all_of,
    any_of,
    guard_parts,
    missing,
    negate,
)
from matrix.read.api.provider import Arguments, Provider, Site, Use
from matrix.read.api.scope import BodyLocation, ClassDefinition, FunctionDefinition, Instance, Names, ReturnValue
from matrix.read.api.value import (
    UNKNOWN,
    Anything,
    Choice,
    Fact,
    FixedVersion,
    InPackage,
    Keywords,
    Literal,
    Method,
    Outside,
    ParametersOf,
    Reference,
    RunningVersion,
    Value,
    compare_versions,
    computed_from,
    gather,
    is_none,
    merge,
    settled,
    single,
    truth_of,
    values_of,
)

POSITIVE: Final = {ast.NotEq: "==", ast.NotIn: "in", ast.IsNot: "is"}
PARTS = {"amp_C": "apex"}  # compiled modules beside their package


class Library(Protocol):
    """The part of the consuming package that its bodies use."""

    reaches: Reaches
    provider: Provider

    def is_module(self, module: str) -> bool:
        """Return whether the package has that module."""

    def look_up(self, module: str, name: str) -> Choice:
        """Return the values of a module's `name` ("" for the module itself)."""

    def exported(self, module: str) -> list[str]:
        """Return the names that `import *` takes from a module."""

    def loads(self, module: str) -> Guard:
        """Return the guard under which importing a module succeeds."""

    def mentions(self, module: str) -> bool:
        """Return whether a module's source contains the name of the provider."""

    def returned(self, routine: FunctionDefinition, names: Names, depth: int) -> ReturnValue:
        """Return the return value of a function whose parameters are `names`, that many calls deep."""


class ExpressionVisitor(ast.NodeVisitor):
    """Evaluates the expressions of one body: `visit_X` returns the values of an expression of the class X.

    Without a recorder, the body is evaluated for its return value only, and no use is recorded. `unpacks`: the number
    of names that the result of a call is unpacked into. `statement`: the expression that is a statement by itself; if
    it is a call that may raise, the code after it runs where it returns.
    """

    def __init__(
        self, library: Library, location: BodyLocation, names: Names, recorder: Recorder | None = None, depth: int = 0
    ) -> None:
        self.library, self.location, self.names = library, location, names
        self.recorder, self.depth = recorder, depth
        self.provider, self.flow = library.provider, Flow()
        self.unpacks: dict[ast.AST, int] = {}
        self.statement: ast.expr | None = None

    def value(self, node: ast.expr | None) -> Choice:
        """Return the values of an expression, and record its uses."""
        choice: Choice = UNKNOWN if node is None else self.visit(node)
        return choice

    def generic_visit(self, node: ast.AST) -> Choice:
        """Evaluate the parts of a node that has no method of its own."""
        return computed_from(self.parts(node))

    def parts(self, node: ast.AST) -> list[Value]:
        """Return the values of all expressions in a node."""
        parts: list[Value] = []
        for child in ast.iter_child_nodes(node):
            parts += values_of([self.value(child)]) if isinstance(child, ast.expr) else self.parts(child)
        return parts

    def value_where(self, node: ast.expr, guard: Guard) -> Choice:
        """Evaluate a part of an expression that Python evaluates only where `guard` holds."""
        self.flow.fork(guard)
        choice = self.value(node)
        self.flow.leave()
        return choice

    def truth(self, node: ast.expr) -> Guard:
        """Return the guard under which a condition holds."""
        return truth_of(self.value(node), shown(node))

    def settled(self, choice: Choice) -> Choice:
        """Replace names of other modules by their values there."""
        return settled(choice, self.library.look_up)

    # ------------------------------------------------------------------- uses

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
        """Record a use that happens where `guard` holds, in addition to the guard of its statement.

        It fails if its path is missing: then a handler runs, or the code after it is not reached.
        """
        if not self.provider.covers(path):
            return
        if self.recorder is not None:
            reached = all_of(self.recorder.base, self.flow.here(), guard)
            site = Site(self.location.path, getattr(node, "lineno", 0), self.location.function)
            unpacks = self.unpacks.get(node, 0)
            use = Use(kind, path, site, reached, reached, arguments, bound, signature=signature, unpacks=unpacks)
            self.recorder.record(use, self.flow.attempts)
        is_read = kind in ("attribute", "call") or (kind == "method" and arguments)
        if is_read and Offers(path) not in guard_parts(guard):
            self.flow.may_fail("AttributeError", any_of(negate(guard), self.loaded(path)))

    def end(self, error: str, node: ast.AST, cause: Guard, *, refused: tuple[str, ...] = ()) -> None:
        """Record an exception that `cause` raises here, if it is that a name of the provider is missing."""
        attempt, number = self.flow.catcher(error)
        is_caught = attempt is not None and not isinstance(attempt.handlers[number].body[-1], ast.Raise)
        if self.recorder is None or is_caught:
            return
        reached = all_of(self.recorder.base, self.flow.here(), cause)
        leading = all_of(*self.flow.path[1::2], cause)  # without what earlier statements of the function exclude
        site = Site(self.location.path, getattr(node, "lineno", 0), self.location.function)
        for path in sorted(missing(cause)):
            self.recorder.record(Use("end", path, site, reached, leading, effect=error, refused=refused), ())

    def loaded(self, path: str) -> Guard:
        """Return the guard under which a path loads; importing the provider itself succeeds, since it is installed."""
        return True if path == f"{self.provider.top}:" else Loads(path)

    def patch(self, owner: ast.expr, name: str, node: ast.AST, choice: Choice) -> None:
        """Record an assignment to an attribute of something of the provider."""
        owners = self.value(owner) if dotted(owner) else ()
        paths = [(guard, value.attribute(name).path) for guard, value in owners if isinstance(value, Reference)]
        for (guard, path), (condition, value) in product(paths, choice):
            entry = function_entry(value.node) if isinstance(value, FunctionDefinition) else ""
            signature = entry if entry.endswith(")") else ""  # a decorator may change it
            self.use("patch", path, node, all_of(guard, condition), bound="object", signature=signature)

    def import_module(self, name: str, node: ast.AST) -> Value:
        """Import a module by name; record the use and the possible failure."""
        if self.library.is_module(name):
            self.flow.may_fail("ImportError", self.library.loads(name))
            return InPackage(name)
        if self.provider.owns(name):
            self.use("import", f"{name}:", node, True)
            self.flow.may_fail("ModuleNotFoundError", self.loaded(f"{name}:"))
            return Reference(f"{name}:")
        self.flow.may_fail("ModuleNotFoundError", installed(name))
        return Outside(name)

    # ------------------------------------------------------------------ names

    def _mention(self, name: str, *, called: bool) -> None:
        if self.recorder is not None and name.startswith("_") and not name.startswith("__"):
            self.recorder.mention(name, self.flow, called=called)

    def visit_Name(self, node: ast.Name, *, called: bool = False) -> Choice:
        """Read a name; one that no body binds is a builtin."""
        self._mention(node.id, called=called)
        choice = self.names.find(node.id)
        return single(Outside(node.id)) if choice is None else self.settled(choice)

    def visit_Attribute(self, node: ast.Attribute, *, whole: bool = True, called: bool = False) -> Choice:
        """Read `owner.name`. `whole`: no longer chain contains it; then reading a TE name is a use unless `called`."""
        is_read = isinstance(node.ctx, ast.Load)
        if is_read:
            self._mention(node.attr, called=called)
        bound = self.names.find(dotted(node)) if isinstance(node.value, ast.Name) else None
        if bound is not None:
            return self.settled(bound)
        base = node.value
        owners = self.visit_Attribute(base, whole=False) if isinstance(base, ast.Attribute) else self.value(base)
        alternatives: list[tuple[Guard, Value]] = []
        for guard, owner in owners:
            if owner == Literal(None):
                self.end("AttributeError", node, guard)
            for condition, value in self._member(owner, node, guard, called=called):
                if whole and not called and is_read and isinstance(value, Reference):
                    name = owner.name if isinstance(owner, Instance) else ""
                    self.use("attribute", value.path, node, all_of(guard, condition), bound=name)
                alternatives.append((all_of(guard, condition), value))
        return gather(alternatives)

    def _member(self, owner: Value, node: ast.Attribute, guard: Guard, *, called: bool) -> Choice:
        """Read an attribute of one value; a private one of the provider's objects is a use."""
        if isinstance(owner, Anything) and owner.of_class:
            path = Reference(owner.of_class).attribute(node.attr).path
            if called:
                return single(Method(path))
            if node.attr.startswith("_") and isinstance(node.ctx, ast.Load):
                self.use("method", path, node, guard, bound="object")
        choice = owner.read(node.attr, called=called) if isinstance(owner, Instance) else ()
        return choice or self._attribute_of(owner, node.attr)

    def _attribute_of(self, owner: Value, name: str) -> Choice:
        if isinstance(owner, InPackage):
            return self.settled(self.library.look_up(owner.module, name))
        if isinstance(owner, ClassDefinition):
            return owner.method(name) or UNKNOWN
        if isinstance(owner, Reference) and name == "__dataclass_fields__":
            return single(ParametersOf(owner.path))
        return single(self.provided(owner.attribute(name)))

    def provided(self, value: Value) -> Value:
        """Return the running version for a name that holds the provider's version, else the value itself."""
        is_version = isinstance(value, Reference) and value.path in self.provider.version_paths
        return RunningVersion(parsed=self.provider.comparable) if is_version else value

    def change(self, owner: ast.expr, change: Callable[[Keywords], Keywords]) -> bool:
        """Change a variable if it holds collected keywords; return whether it does."""
        choice = self.names.find(owner.id) if isinstance(owner, ast.Name) else None
        if not choice or not any(isinstance(value, Keywords) for _, value in choice):
            return False
        changed = [(guard, change(value) if isinstance(value, Keywords) else value) for guard, value in choice]
        self.names.own[dotted(owner)] = gather(changed)
        return True

    # --------------------------------------------------- constants, conditions

    def visit_Constant(self, node: ast.Constant) -> Choice:
        """Read a constant."""
        return single(Literal(node.value))

    def visit_Tuple(self, node: ast.Tuple | ast.List) -> Choice:
        """Read a tuple or a list of constants."""
        choices = [self.value(element) for element in node.elts]
        items = [choice[0][1] for choice in choices if len(choice) == 1]
        constants = [item.value for item in items if isinstance(item, Literal)]
        return single(Literal(tuple(constants))) if len(constants) == len(choices) else UNKNOWN

    def visit_Dict(self, node: ast.Dict) -> Choice:
        """Read a dictionary, which may collect keywords."""
        keywords = Keywords()
        for key, item in zip(node.keys, node.values, strict=True):
            choice, name = self.value(item), text_of(key)
            if name is not None:
                keywords = keywords.put(name)
                if len(choice) == 1 and isinstance(choice[0][1], (Literal, Outside, Fact, FixedVersion)):
                    keywords = replace(keywords, items=(*keywords.items, (name, choice[0][1])))
            elif key is None:
                keywords = keywords.updated(values_of([choice]), (), more=len(choice) > 1)
            else:
                keywords = keywords.opened()
        return single(keywords)

    def visit_Subscript(self, node: ast.Subscript) -> Choice:
        """Read a key of a dictionary of constants or functions, such as {">=": operator.ge}."""
        dictionary, key = self.value(node.value), self.value(node.slice)
        if len(dictionary) == len(key) == 1:
            (_, keywords), (_, name) = dictionary[0], key[0]
            if isinstance(keywords, Keywords) and not keywords.open and isinstance(name, Literal):
                return next((single(item) for key_name, item in keywords.items if key_name == name.value), UNKNOWN)
        return computed_from(values_of([dictionary, key]))

    def visit_GeneratorExp(self, node: ast.SetComp | ast.ListComp | ast.GeneratorExp) -> Choice:
        """Evaluate a comprehension; `{field.name for field in fields(X)}` holds the names of X's parameters."""
        source, *loops = node.generators
        if loops or source.ifs or dotted(node.elt) != f"{dotted(source.target)}.name":
            return self.generic_visit(node)
        choice = self.value(source.iter)
        names = [(guard, value if isinstance(value, ParametersOf) else value.computed()) for guard, value in choice]
        return gather(names)

    def visit_DictComp(self, node: ast.DictComp) -> Choice:
        """Read a dictionary whose keys are not known."""
        self.parts(node)
        return single(Keywords(open=True))

    def visit_BoolOp(self, node: ast.BoolOp) -> Choice:
        """Evaluate `and` or `or`: an operand is read where those before it do not decide."""
        is_and = isinstance(node.op, ast.And)
        choices: list[Choice] = []
        truths: list[Guard] = []
        for operand in node.values:
            choices.append(self.value_where(operand, all_of(*truths) if is_and else negate(any_of(*truths))))
            truths.append(truth_of(choices[-1], shown(operand)))
        if is_and:
            return single(Fact(all_of(*truths)))
        if any(isinstance(value, (Reference, Keywords, FunctionDefinition)) for value in values_of(choices)):
            return merge(truths[0], choices[0], choices[-1])  # `given or default`
        return single(Fact(any_of(*truths)))

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Choice:
        """Evaluate `not`."""
        if isinstance(node.op, ast.Not):
            return single(Fact(negate(self.truth(node.operand))))
        self.value(node.operand)
        return UNKNOWN

    def visit_IfExp(self, node: ast.IfExp) -> Choice:
        """Evaluate `a if condition else b`."""
        condition = self.truth(node.test)
        choice = self.value_where(node.body, condition)
        return merge(condition, choice, self.value_where(node.orelse, negate(condition)))

    def visit_Compare(self, node: ast.Compare) -> Choice:
        """Evaluate a comparison; of several in a row only whether they depend on the provider."""
        op, comparator = node.ops[0], node.comparators[0]
        operand, comparand = self.value(node.left), self.value(comparator)
        text = written(operand, node.left)
        if len(node.ops) > 1:
            choices = [operand, comparand, *map(self.value, node.comparators[1:])]
            kind = Unclear if any(value.of_te for value in values_of(choices)) else Config
            return single(Fact(kind(shown(node))))
        if isinstance(op, (ast.Is, ast.IsNot)) and comparand == single(Literal(None)):
            absent = is_none(operand, text)
            return single(Fact(absent if isinstance(op, ast.Is) else negate(absent)))
        text = shortened(f"{text} {WORDS[type(op)]} {written(comparand, comparator)}")
        pairs = product(operand, comparand)
        guards = [all_of(guard, condition, compared(op, x, y, text)) for (guard, x), (condition, y) in pairs]
        return single(Fact(any_of(*guards)))

    visit_SetComp = visit_ListComp = visit_GeneratorExp
    visit_List = visit_Tuple


def written(choice: Choice, node: ast.AST) -> str:
    """Write an operand by its name at its origin, so that one condition has the same text everywhere."""
    if len(choice) == 1 and isinstance(choice[0][1], Anything) and choice[0][1].text:
        return choice[0][1].text
    return shown(node)


def compared(op: ast.cmpop, left: Value, right: Value, text: str) -> Guard:
    """Return the guard under which a comparison of two values holds; `text` is the comparison."""
    negative = type(op) in POSITIVE
    if isinstance(op, (ast.In, ast.NotIn)) and isinstance(left, Literal):
        if isinstance(right, ParametersOf):
            takes = Takes(right.path, str(left.value))
            return negate(takes) if negative else takes
        if isinstance(right, Literal) and isinstance(right.value, tuple):
            return (left.value in right.value) is not negative
    guard = compare_versions(ORDERS[type(op)], left, right) if type(op) in ORDERS else None
    if guard is not None:
        return guard
    if isinstance(op, (ast.Eq, ast.NotEq)) and isinstance(left, Literal) and isinstance(right, Literal):
        return (left.value == right.value) is not negative
    if left.of_te or right.of_te:
        return Unclear(text)
    if negative:  # `x != 1` becomes `not x == 1`, so that the two exclude each other
        return negate(Config(text.replace(f"{WORDS[type(op)]} ", f"{POSITIVE[type(op)]} ", 1)))
    return Config(text)


def text_of(node: ast.AST | None) -> str | None:
    """Return the text of a string literal, None for anything else."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def installed(module: str) -> Guard:
    """Return the condition that the package of a module is installed."""
    top = module.partition(".")[0]
    return Config(f"{PARTS.get(top, top)} is installed")
