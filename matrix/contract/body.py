"""Read one module or function of a consuming package: its definitions and its uses of the provider.

A module is read in import order; its functions afterwards, since they run later. An import that can fail is a fork:
the code after it is guarded by its success, a handler that catches it by its failure. A use behind a failed import is
therefore no finding of its own.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce

from matrix.contract.binding import Bindings, Library
from matrix.contract.definition import called, dotted, function_entry
from matrix.contract.flow import Scope
from matrix.contract.guard import Guard, all_of, any_of, negate
from matrix.contract.reach import Function, PendingUse, about_te, elsewhere, is_local
from matrix.contract.usage import Arguments, Site, Use
from matrix.contract.value import (
    UNKNOWN,
    Anything,
    BodyLocation,
    Choice,
    ClassDefinition,
    Fact,
    FunctionDefinition,
    InPackage,
    Instance,
    Keywords,
    Literal,
    Names,
    Outside,
    Reference,
    ReturnValue,
    concerns_te,
    gather,
    only,
    under,
)

DEEPEST_RUN = 6  # nested functions that are evaluated for their return value; the deepest in any release is 4
LONGEST_RUN = 60  # statements of such a function: is_te_min_version has 8, get_te_version 20, a support check 45
Node = ast.FunctionDef | ast.AsyncFunctionDef


class Body(Bindings):
    """Reads one module, class or function.

    `base` is the guard of a class in its enclosing body, `record` the function that is read. `silent`: the body is
    evaluated for its return value only, and records no use.
    """

    def __init__(
        self, library: Library, place: BodyLocation, names: Names, *, record: Function | None = None,
        base: Guard = True, blueprint: ClassDefinition | None = None, silent: bool = False, depth: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(library, place, names)
        self.record, self.base, self.blueprint = record, base, blueprint
        self.silent, self.depth = silent, depth
        self.waiting: list[Callable[[Guard], None]] = []  # functions defined here, read after this body
        self._statement: ast.expr | None = None

    def read(self, statements: Sequence[ast.stmt]) -> Guard:
        """Read the statements without their function bodies; return the guard under which their end is reached."""
        self.block(statements)
        self.names.finished = True
        return all_of(*self.path)

    def declare_globals(self, node: Node) -> None:
        """Give the constants of the module that a function reassigns the values that its first call finds.

        So `if _version is None: _version = ...` returns that version.
        """
        for part in ast.walk(node) if self.names.module.initial else ():
            for name in part.names if isinstance(part, ast.Global) else ():
                first = self.names.module.initial.get(name)
                if first is not None:
                    self.names.own[name] = first

    def type_parameters(self, node: Node) -> None:
        """Give parameters that are annotated with a class of the provider its type."""
        for slot in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]:
            known = self.names.own.get(slot.arg)
            if slot.annotation is not None and known == only(Anything(slot.arg)):
                path = self._annotated(slot.annotation)
                self.names.own[slot.arg] = only(Anything(slot.arg, of_class=path))

    def _annotated(self, node: ast.expr) -> str:
        """Return the path of the provider's class that an annotation names, "" for others."""
        if isinstance(node, ast.Subscript) and dotted(node.value).rpartition(".")[2] == "Optional":
            return self._annotated(node.slice)
        if isinstance(node, ast.BinOp) and isinstance(node.right, ast.Constant) and node.right.value is None:
            return self._annotated(node.left)
        first, *rest = dotted(node).split(".")
        for _, value in self.settled(self.names.find(first) or ()):
            if isinstance(value, Reference):
                return reduce(Reference.attribute, rest, value).path
        return ""

    def narrowed(self, test: ast.expr) -> Scope:
        """Return the names that are objects of the provider's classes where a condition holds, with their classes.

        The condition is isinstance, or calls a function that returns it.
        """
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
            return {name: choice for part in test.values for name, choice in self.narrowed(part).items()}
        if not (isinstance(test, ast.Call) and test.args and isinstance(test.args[0], ast.Name)):
            return {}
        name = test.args[0].id
        known = self.names.find(name) or UNKNOWN
        if len(known) != 1 or not isinstance(known[0][1], Anything) or known[0][1].of_class:
            return {}
        if dotted(test.func) == "isinstance":
            classes = [(guard, value.path) for guard, value in self.value(test.args[1]) if isinstance(value, Reference)]
        else:
            classes = self._tested(test.func) if isinstance(test.func, ast.Name) and self.depth < DEEPEST_RUN else []
        choice = gather((guard, replace(known[0][1], of_class=path)) for guard, path in classes)
        return {name: choice} if choice else {}

    def _tested(self, func: ast.Name) -> list[tuple[Guard, str]]:
        """Return the classes of the provider of which a function tests its first argument."""
        found: list[tuple[Guard, str]] = []
        for guard, routine in self.settled(self.names.find(func.id) or ()):
            if isinstance(routine, FunctionDefinition) and isinstance(last := routine.node.body[-1], ast.Return):
                names = Names(_parameters(routine, None), routine.home.inside)
                body = Body(self.library, routine.place, names, silent=True, depth=self.depth + 1)
                first = [slot.arg for slot in routine.node.args.args[:1]]
                inner = body.narrowed(last.value) if last.value else {}
                found += [
                    (all_of(guard, where), value.of_class)
                    for name in first
                    for where, value in inner.get(name, ())
                    if isinstance(value, Anything)
                ]
        return found

    def read_functions(self, reached: Guard = True) -> None:
        """Read the functions defined in this body, which run only where `reached` holds."""
        while self.waiting:
            self.waiting.pop(0)(reached)

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
        """Record a use. It fails if its path is missing: then a handler runs, or the code after it is not reached."""
        if not self.provider.covers(path):
            return
        if not self.silent:
            reached = all_of(self.base, self.here(), guard)
            if reached is not False:
                site = Site(self.place.path, getattr(node, "lineno", 0), self.place.function)
                unpacks = self._unpacks.get(node, 0)
                use = Use(
                    kind, path, site, reached, reached, arguments, bound, signature=signature, unpacks=unpacks
                )  # fmt: skip
                draft = PendingUse(use, self.record)
                self.library.drafts.append(draft)
                for attempt in self.attempts:
                    attempt.drafts.append(draft)
        if kind in ("attribute", "call") or (kind == "method" and arguments):
            self.may_fail("AttributeError", any_of(negate(guard), self.loaded(path)))

    def mention(self, name: str, *, called: bool) -> None:
        """Record the callers of a private function, or that it is passed as a value."""
        if self.silent or not name.startswith("_") or name.startswith("__"):
            return
        if called:
            site = (self.record, all_of(self.base, self.here()))
            self.library.reaches.calls.setdefault(name, []).append(site)
        else:
            self.library.reaches.handed_on.add(name)

    # ------------------------------------------------------------ definitions

    def _do_functiondef(self, node: Node) -> None:
        for expression in [*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)]:
            self.value(expression)
        if not self.place.postponed:
            for annotation in _annotations(node):
                self.value(annotation)
        routine = FunctionDefinition(node, self.place, self.names)
        self.names.own[node.name] = only(routine)
        if self.blueprint:
            self.blueprint.definitions.append(routine)
        if not self.silent:
            guard = all_of(self.base, self.here())
            first = node.name == "__init__"  # it sets attributes that the other methods read
            self.waiting.insert(
                0 if first else len(self.waiting), lambda reached: self._read_function(routine, all_of(guard, reached))
            )

    _do_asyncfunctiondef = _do_functiondef

    def _read_function(self, routine: FunctionDefinition, guard: Guard) -> None:
        node, blueprint = routine.node, self.blueprint
        name = f"{self.place.function}.{node.name}" if self.place.function else node.name
        method_of = blueprint if blueprint and not routine.decorators & {"staticmethod", "classmethod"} else None
        record = Function(name, guard, self.record)
        if method_of and node.name not in ("__init__", "__new__"):
            record.blueprints = tuple(self._constructed(method_of))
        names = Names(_parameters(routine, Instance(blueprint) if blueprint else None), self.names.inside)
        body = Body(self.library, replace(self.place, function=name), names, record=record)
        body.type_parameters(node)
        body.declare_globals(node)
        end = body.read(node.body)
        record.completes = body.outcome(end).completes
        if method_of and node.name == "__init__":
            self.library.reaches.constructors[method_of] = record
            method_of.attributes = _set_only_there(node, record, method_of, names.own)
        if method_of and method_of.is_config and node.name in ("__init__", "__post_init__"):
            self.library.reaches.add_checks(record)
        body.read_functions()

    def _constructed(self, blueprint: ClassDefinition) -> list[ClassDefinition]:
        """Return the classes whose constructors have run for an instance: its own, and the bases it calls."""
        own = [method.node for method in blueprint.definitions if method.node.name == "__init__"]
        passes_on = not own or any(
            isinstance(part, ast.Attribute) and part.attr == "__init__" for node in own for part in ast.walk(node)
        )
        found = [blueprint]
        for base in blueprint.bases if passes_on else ():
            for guard, value in self.settled(base):
                if isinstance(value, ClassDefinition) and guard is True:
                    found += self._constructed(value)
        return found

    def _do_classdef(self, node: ast.ClassDef) -> None:
        for decorator in node.decorator_list:
            self.value(decorator)
        bases = tuple(self.value(base) for base in node.bases)
        name = f"{self.place.function}.{node.name}" if self.place.function else node.name
        place, names = replace(self.place, function=name), Names({}, self.names, of_class=True)
        blueprint = ClassDefinition(node.name, bases, own_fields=_fields(node))
        self.names.own[node.name] = only(blueprint)
        body = Body(
            self.library, place, names, record=self.record, base=all_of(self.base, self.here()), blueprint=blueprint,
            silent=self.silent, depth=self.depth,
        )  # fmt: skip
        body.read(node.body)
        blueprint.methods.update(_methods(names))
        blueprint.assigned = frozenset(names.own) - set(blueprint.methods)
        self._record_overrides(blueprint, body)
        self.waiting += body.waiting

    def _record_overrides(self, blueprint: ClassDefinition, body: Body) -> None:
        """Record the methods that a class defines over those of the provider's classes among its bases."""
        for guard, base in self._provided_bases(blueprint):
            for method in blueprint.definitions:
                name, signature = method.node.name, function_entry(method.node, member=True)
                if signature.endswith(")") and not (name.startswith("__") and name != "__init__"):
                    path = base.attribute(name).path
                    body.use("override", path, method.node, guard, bound=blueprint.name, signature=signature)

    def _provided_bases(self, blueprint: ClassDefinition) -> list[tuple[Guard, Reference]]:
        """Return the provider's classes that a class extends, itself or through others of the package."""
        found: list[tuple[Guard, Reference]] = []
        for base in blueprint.bases:
            for guard, value in self.settled(base):
                if isinstance(value, Reference):
                    found.append((guard, value))
                elif isinstance(value, ClassDefinition) and value is not blueprint:
                    found += [(all_of(guard, inner), above) for inner, above in self._provided_bases(value)]
        return list(dict.fromkeys(found))

    def run(
        self, routine: FunctionDefinition, values: Sequence[Choice], call: ast.Call, owner: Instance | None
    ) -> Choice:
        """Return the value of a call to a function of the package, UNKNOWN for a function that is not about TE."""
        node, home = routine.node, routine.home
        if self.depth >= DEEPEST_RUN or not self.may_depend_on_te(routine):
            return UNKNOWN
        bound = owner is not None and "staticmethod" not in routine.decorators
        names = _parameters(routine, owner if bound else None)
        body = Body(self.library, routine.place, Names(names, home.inside), silent=True, depth=self.depth + 1)
        slots = [*node.args.posonlyargs, *node.args.args]
        for slot, default in zip(slots[len(slots) - len(node.args.defaults) :], node.args.defaults, strict=True):
            names[slot.arg] = body.value(default)
        for slot, argument, choice in zip(slots[bound:], call.args, values, strict=False):
            names[slot.arg] = UNKNOWN if isinstance(argument, ast.Starred) else choice
        for keyword in call.keywords:
            if keyword.arg in names:
                names[keyword.arg] = self.value(keyword.value)
        body.declare_globals(node)
        key = tuple(names.items())
        known = routine.returned.get(key)
        if known is None:
            known = body.outcome(body.read(node.body))
            if home.finished:
                routine.returned[key] = known
        if call is self._statement:
            self.assume_guard(about_te(known.completes))
        return known.value

    def outcome(self, end: Guard) -> ReturnValue:
        """Return the return value of the function; `end` is the guard under which the end of its body is reached."""
        pairs = [pair for guard, choice in self.returns for pair in under(guard, choice)]
        value = gather([*pairs, (end, Literal(None))])
        if len(value) == 1:
            value = only(value[0][1])  # in all other cases it raises
        return ReturnValue(value, any_of(end, *(guard for guard, _ in self.returns)))

    def _do_expr(self, node: ast.Expr) -> None:
        """Read an expression statement; if it is a call that may raise, the code after it runs where it returns."""
        self._statement = node.value
        self.value(node.value)

    def may_depend_on_te(self, routine: FunctionDefinition) -> bool:
        """Return whether a function is short and uses a name that bears on TE."""
        if routine.about_te is None:
            routine.about_te = False  # during the evaluation: recursion adds nothing
            parts = list(ast.walk(routine.node))
            short = sum(isinstance(part, ast.stmt) for part in parts) <= LONGEST_RUN
            yields = any(isinstance(part, (ast.Yield, ast.YieldFrom, ast.Await)) for part in parts)
            names = sorted({part.id for part in parts if isinstance(part, ast.Name)})
            imports = any(isinstance(part, (ast.Import, ast.ImportFrom)) for part in parts)
            found = (routine.home.inside.find(name) or () for name in names)
            routine.about_te = short and not yields and (imports or any(map(self._concerns_te, found)))
        return routine.about_te

    def _concerns_te(self, choice: Choice) -> bool:
        for _, value in choice:
            if isinstance(value, InPackage) and value.name:
                bears = self.library.mentions(value.module)
            elif isinstance(value, FunctionDefinition):
                bears = self.may_depend_on_te(value)
            elif isinstance(value, Outside):
                bears = value.path.startswith(("importlib", "inspect"))
            else:
                bears = isinstance(value, (Reference, Fact, Keywords)) or concerns_te(value)
            if bears:
                return True
        return False


def _parameters(routine: FunctionDefinition, owner: Instance | None) -> Scope:
    """Return the values of a function's parameters without any knowledge of its callers."""
    arguments = routine.node.args
    slots = [*arguments.posonlyargs, *arguments.args]
    names: Scope = {
        slot.arg: only(Anything(slot.arg)) for slot in [*slots, *arguments.kwonlyargs, arguments.vararg] if slot
    }
    if arguments.kwarg:
        names[arguments.kwarg.arg] = only(Keywords(open=True))
    if owner is not None and slots and "staticmethod" not in routine.decorators:
        names[slots[0].arg] = only(Instance(owner.blueprint))
        names["super()"] = only(Instance(owner.blueprint, parent=True))
    return names


def _methods(names: Names) -> Scope:
    """Return the functions that a class body has at its end: a fork may define one in each branch."""
    return {
        name: choice
        for name, choice in names.own.items()
        if any(isinstance(value, FunctionDefinition) for _, value in choice)
    }


def _set_only_there(constructor: Node, record: Function, blueprint: ClassDefinition, names: Scope) -> Scope:
    """Return the attributes that only the constructor sets, with their values as other methods read them."""
    changed = {
        part.attr
        for method in blueprint.definitions
        if method.node is not constructor
        for part in ast.walk(method.node)
        if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store)
    }
    own = constructor.args.args[0].arg if constructor.args.args else "self"
    kept = {name.partition(".")[2]: choice for name, choice in names.items() if name.startswith(f"{own}.")}
    return {name: _kept(name, choice, record) for name, choice in kept.items() if name not in changed}


def _kept(name: str, choice: Choice, record: Function) -> Choice:
    """Return the value of an attribute for other methods; a local name of the constructor becomes `self.name`."""
    return gather(
        (
            elsewhere(guard, record),
            Anything(f"self.{name}") if isinstance(value, Anything) and is_local(value.text) else value,
        )
        for guard, value in choice
    )


def _fields(node: ast.ClassDef) -> frozenset[str] | None:
    """Return the fields that a dataclass adds to the constructor, None for another class."""
    if not any(dotted(called(decorator)).rpartition(".")[2] == "dataclass" for decorator in node.decorator_list):
        return None
    return frozenset(
        part.target.id for part in node.body if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
    )


def _annotations(node: Node) -> list[ast.expr]:
    arguments = node.args
    slots = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    annotations = [slot.annotation for slot in slots if slot is not None]
    return [annotation for annotation in [*annotations, node.returns] if annotation is not None]
