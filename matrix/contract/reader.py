"""Read one module or function of a consuming package: its definitions and its uses of the provider.

A module is read in import order; its functions afterwards, since they run later. An import that can fail is a fork:
the code after it is guarded by its success, a handler that catches it by its failure. A use behind a failed import is
therefore no finding of its own.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from matrix.contract.definition import absolute, called, dotted, function_entry
from matrix.contract.evaluation import Evaluator
from matrix.contract.expressions import installed, text_of
from matrix.contract.flow import Attempt
from matrix.contract.guard import INSTALLED, Config, Guard, all_of, any_of, guard_parts, leaves, missing, negate
from matrix.contract.reachability import Function, Recorder, elsewhere, is_local
from matrix.contract.scope import (
    ClassDefinition,
    FunctionDefinition,
    FunctionNode,
    Instance,
    Names,
    ReturnValue,
    Scope,
    added_fields,
    bound_names,
    set_attributes,
    walk_all,
)
from matrix.contract.uses import Site, Use
from matrix.contract.value import (
    UNKNOWN,
    Anything,
    Choice,
    Fact,
    InPackage,
    Literal,
    Outside,
    Reference,
    Value,
    gather,
    merge,
    only,
    under,
)

STORED = re.compile(r"isinstance\([\w.]+, (Base)?Exception\)")  # an exception that was caught elsewhere
A_LOOP, A_CASE = Config("a loop"), Config("a case")  # that they run is no condition to show
MOST_ROUNDS = 16  # iterations of a loop over constants that are read one by one; the longest in any release has 4


class Reader:
    """Reads the statements of one module, class or function.

    `expressions` evaluates their expressions and has the names of the body; `blueprint` is the class whose body it is.
    """

    def __init__(self, expressions: Evaluator, blueprint: ClassDefinition | None = None) -> None:
        self.expressions, self.blueprint = expressions, blueprint
        self.library, self.location, self.recorder = expressions.library, expressions.location, expressions.recorder
        self.names, self.flow = expressions.names, expressions.flow
        self.returns: list[tuple[Guard, Choice]] = []
        self.waiting: list[tuple[Reader, FunctionDefinition, Guard]] = []  # functions defined here, read after the body
        self._bindings: dict[str, int] = {}

    def read(self, statements: Sequence[ast.stmt]) -> Guard:
        """Read the statements without their function bodies; return the guard under which their end is reached."""
        self.block(statements)
        self.names.finished = True
        return all_of(*self.flow.path)

    def read_functions(self, reached: Guard = True) -> None:
        """Read the functions defined in this body, which run only where `reached` holds."""
        while self.waiting:
            reader, routine, guard = self.waiting.pop(0)
            reader.read_function(routine, all_of(guard, reached))

    def outcome(self, end: Guard) -> ReturnValue:
        """Return the return value of the function; `end` is the guard under which the end of its body is reached."""
        pairs = [pair for guard, choice in self.returns for pair in under(guard, choice)]
        choice = gather([*pairs, (end, Literal(None))])
        if len(choice) == 1:
            choice = only(choice[0][1])  # in all other cases it raises
        return ReturnValue(choice, any_of(end, *(guard for guard, _ in self.returns)))

    # --------------------------------------------------------------- branches

    def block(self, statements: Sequence[ast.stmt]) -> None:
        """Read statements up to the first unreachable one."""
        for statement in statements:
            if self.flow.path[-1] is False:
                return
            name = type(statement).__name__.removeprefix("Async").lower()
            getattr(self, f"_{name}", self.expressions.parts)(statement)

    def branch(
        self, statements: Sequence[ast.stmt], guard: Guard, narrowed: Scope | None = None
    ) -> tuple[Guard, Scope]:
        """Read a branch in a copy of the names; return the guard under which its end is reached, and the names.

        `narrowed` are names with the values that they have in this branch only.
        """
        if guard is False:
            return False, {}
        outer = self.names.own
        self.names.own = {**outer, **(narrowed or {})}
        self.flow.fork(guard)
        self.block(statements)
        scope, self.names.own = self.names.own, outer
        for name, choice in (narrowed or {}).items():
            if scope[name] is choice:
                scope[name] = outer.get(name) or self.names.unbound(name) or UNKNOWN
        return self.flow.leave(), scope

    def join(self, guard: Guard, scope: Scope, alternative: Scope) -> None:
        """Go on with the names of `scope` where `guard` holds, those of `alternative` where it does not."""
        joined: Scope = {}
        for name in dict.fromkeys([*scope, *alternative]):
            if_true, if_false = scope.get(name), alternative.get(name)
            if if_true is None or if_false is None:
                # Bound in one branch only: in the other it has the value of the enclosing body, or none.
                outer = self.names.unbound(name) or ()
                if_true, if_false = if_true or outer, if_false or outer
            if if_true and if_false:
                joined[name] = merge(guard, if_true, if_false)
            elif _is_incidental(guard):
                joined[name] = if_true or if_false
            else:
                joined[name] = gather(under(guard, if_true) if if_true else under(negate(guard), if_false))
        self.names.own = joined

    def _if(self, node: ast.If) -> None:
        condition = self.expressions.truth(node.test)
        end, scope = self.branch(node.body, condition, self.expressions.narrowed(node.test))
        else_end, else_scope = self.branch(node.orelse, negate(condition))
        if end is not False and else_end is not False:
            self.join(condition, scope, else_scope)
        elif end is not False or else_end is not False:
            self.names.own = else_scope if end is False else scope
        if not (end is True and else_end is True):
            self.flow.assume(any_of(all_of(condition, end), all_of(negate(condition), else_end)))

    def _assert(self, node: ast.Assert) -> None:
        holds = self.expressions.truth(node.test)
        self.expressions.end("AssertionError", node, negate(holds), refused=("AssertionError",))
        self.flow.assume(holds)

    def _raise(self, node: ast.Raise) -> None:
        name = dotted(called(node.exc)).rpartition(".")[2] if node.exc else ""
        if self.recorder and name:
            error = name if name[0].isupper() else "Exception"
            inner, function = self.flow.path[-2:], self.recorder.function
            cause = all_of(*inner, function.guard if function and not inner[1:] else True)
            self.expressions.end(error, node, cause, refused=(error,))
            if any(isinstance(part, Config) and STORED.fullmatch(part.text) for part in guard_parts(inner[0])):
                site = Site(self.location.path, node.lineno, self.location.function)
                self.recorder.reaches.rethrows.setdefault(
                    site.path, Use("end", "", site, True, effect=error, refused=(error,))
                )
        self._leave(node)

    def _leave(self, node: ast.Raise | ast.Break | ast.Continue) -> None:
        self.expressions.parts(node)
        self.flow.path[-1] = False

    def _return(self, node: ast.Return) -> None:
        reached = self.flow.here()
        self.returns.append((reached, self.expressions.value(node.value) if node.value else only(Literal(None))))
        self.flow.path[-1] = False

    def _for(self, node: ast.For | ast.AsyncFor) -> None:
        choice = self.expressions.value(node.iter)
        items = choice[0][1].value if len(choice) == 1 and isinstance(choice[0][1], Literal) else None
        if isinstance(items, tuple) and len(items) <= MOST_ROUNDS:
            for item in items:
                self._bind(node.target, None, only(Literal(item)))
                self.block(node.body)
        elif isinstance(node.iter, (ast.Tuple, ast.List)) and len(node.iter.elts) <= MOST_ROUNDS and not _jumps(node):
            for element in node.iter.elts:
                self._bind(node.target, element, self.expressions.value(element))
                self.block(node.body)
        else:
            self._bind(node.target, None, UNKNOWN)
            self._loop(node.body)
        self.block(node.orelse)

    def _while(self, node: ast.While) -> None:
        self.expressions.value(node.test)
        self._loop(node.body)
        self.block(node.orelse)

    def _loop(self, body: Sequence[ast.stmt]) -> None:
        """Read a loop body; names then have the values after an iteration or, without an iteration, before it."""
        _, scope = self.branch(body, True)
        self.join(A_LOOP, scope, self.names.own)

    def _with(self, node: ast.With | ast.AsyncWith) -> None:
        for item in node.items:
            self.expressions.value(item.context_expr)
            if item.optional_vars is not None:
                self._bind(item.optional_vars, None, UNKNOWN)
        handlers = [handler for item in node.items for handler in self._swallowing(item.context_expr)]
        if handlers:
            self._try(ast.Try(node.body, handlers, [], []))
        else:
            self.block(node.body)

    def _swallowing(self, context: ast.expr) -> list[ast.ExceptHandler]:
        """Return what a context manager catches: contextlib.suppress, or a generator around its yield."""
        name = dotted(context.func) if isinstance(context, ast.Call) else ""
        if isinstance(context, ast.Call) and name.rpartition(".")[2] == "suppress":
            return [ast.ExceptHandler(ast.Tuple(context.args, ast.Load()), None, [ast.Pass()])]
        choice = self.expressions.settled(self.names.find(name) or ()) if name else ()
        routines = [value.node for _, value in choice if isinstance(value, FunctionDefinition)]
        tries = [part for routine in routines for part in routine.body if isinstance(part, ast.Try)]
        handlers = [handler for part in tries if _has(part.body, ast.Yield) for handler in part.handlers]
        endings = {True: ast.Raise(None, None), False: ast.Pass()}
        return [ast.ExceptHandler(part.type, None, [endings[_has(part.body, ast.Raise)]]) for part in handlers]

    def _match(self, node: ast.Match) -> None:
        self.expressions.value(node.subject)
        for case in node.cases:
            _, scope = self.branch(case.body, A_CASE)
            self.join(A_CASE, scope, self.names.own)

    def _try(self, node: ast.Try) -> None:
        attempt = Attempt(node.handlers, len(self.flow.path))
        self.flow.attempts.append(attempt)
        end, scope = self.branch(node.body, True)
        self.flow.attempts.pop()
        tried = set(bound_names(node.body))
        handled: list[tuple[Guard, Guard, Scope]] = []  # guard of its entry, guard of its end, names
        for number, handler in enumerate(node.handlers):
            guard = attempt.entered(number)
            handler_end, handler_scope = self.branch(handler.body, guard)
            attempt.record_effect(number, handler_scope, tried)
            if number in attempt.failures:  # only an import or an attribute of TE decides that it is entered
                handled.append((guard, handler_end, handler_scope))
        self.names.own = scope
        self.flow.fork(negate(attempt.failed()), end)
        self.block(node.orelse)
        self._rejoin(attempt.failed(), self.flow.leave(), handled)
        self.block(node.finalbody)

    def _rejoin(self, failed: Guard, end: Guard, handled: Sequence[tuple[Guard, Guard, Scope]]) -> None:
        """Go on after a try statement: from the end of its body, or of a handler."""
        is_reached = end is not False
        ends = [all_of(negate(failed), end)]
        for guard, handler_end, scope in handled:
            ends.append(all_of(guard, handler_end))
            if handler_end is not False and is_reached:
                self.join(negate(guard), self.names.own, scope)
            elif handler_end is not False:
                self.names.own, is_reached = scope, True
        self.flow.assume(any_of(*ends))

    # --------------------------------------------------------------- bindings

    def _expr(self, node: ast.Expr) -> None:
        self.expressions.statement = node.value
        self.expressions.value(node.value)

    def _assign(self, node: ast.Assign) -> None:
        target = node.targets[0]
        if isinstance(target, (ast.Tuple, ast.List)) and isinstance(node.value, ast.Call):
            starred = any(isinstance(element, ast.Starred) for element in target.elts)
            self.expressions.unpacks[node.value] = 0 if starred else len(target.elts)
        choice = self.expressions.value(node.value)
        for target in node.targets:
            self._bind(target, node.value, choice)

    def _annassign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._bind(node.target, node.value, self.expressions.value(node.value))

    def _augassign(self, node: ast.AugAssign) -> None:
        self.expressions.value(node.value)
        self._bind(node.target, None, UNKNOWN)

    def _bind(self, target: ast.expr, value: ast.expr | None, choice: Choice) -> None:
        """Bind a target: a name, an attribute of self, a key of collected keywords, several of them."""
        if isinstance(target, ast.Name):
            self.names.own[target.id] = self._named(target.id, choice)
        elif isinstance(target, ast.Starred):
            self._bind(target.value, None, UNKNOWN)
        elif isinstance(target, (ast.Tuple, ast.List)):
            parts = value.elts if isinstance(value, (ast.Tuple, ast.List)) else []
            values = parts if len(parts) == len(target.elts) else [None] * len(target.elts)
            for element, part in zip(target.elts, values, strict=True):
                self._bind(element, part, self.expressions.value(part))
        elif isinstance(target, ast.Attribute):
            owner = self.names.find(target.value.id) if isinstance(target.value, ast.Name) else None
            if owner and isinstance(owner[0][1], Instance):
                self.names.own[dotted(target)] = self._named(dotted(target), choice)
            else:
                self.expressions.patch(target.value, target.attr, target, choice)
        elif isinstance(target, ast.Subscript):
            self.expressions.value(target.slice)
            name = text_of(target.slice)
            if name and dotted(target.value) == "sys.modules" and self.library.provider.owns(name):
                self.expressions.use("patch", f"{name}:", target, True, bound="object")
            self.expressions.change(target.value, lambda keywords: keywords.put(name) if name else keywords.opened())

    def _named(self, name: str, choice: Choice) -> Choice:
        """Return `choice`, or for an unknown value one named after its variable; each rebinding adds a prime."""
        of_class = choice[0][1].of_class if len(choice) == 1 and isinstance(choice[0][1], Anything) else ""
        if choice != UNKNOWN and not of_class:
            return choice
        is_held = "." in name and not self.location.function.endswith("__init__")  # an attribute set before this call
        rebindings = self._bindings.get(name, int(name in self.names.own or is_held))
        self._bindings[name] = rebindings + 1
        return only(Anything(name + "'" * rebindings, of_class=of_class))

    def _import(self, node: ast.Import) -> None:
        for alias in node.names:
            module = self.expressions.import_module(alias.name, node)
            top = alias.name.partition(".")[0]
            package: Mapping[type[Value], Value] = {Reference: Reference(f"{top}:"), InPackage: InPackage(top)}
            value = module if alias.asname else package.get(type(module), Outside(top))
            self.names.own[alias.asname or top] = only(value)

    def _importfrom(self, node: ast.ImportFrom) -> None:
        source = absolute("." * node.level + (node.module or ""), self.location.module, self.location.is_package)
        is_inside, owns = self.library.is_module(source), self.library.provider.owns
        is_provided = owns(source) and not is_inside
        if not is_provided:
            self.flow.may_fail("ImportError", self.library.loads(source) if is_inside else installed(source))
        names = self.library.exported(source) if is_inside and node.names[0].name == "*" else []
        # Settled, since two modules may import * from one another.
        self.names.own |= {name: self.expressions.settled(only(InPackage(source, name))) for name in names}
        for alias in node.names:
            name = f"{source}.{alias.name}"  # `from megatron import core`
            value: Value = InPackage(source, alias.name) if is_inside else Outside(name)
            if is_inside and self.library.mentions(source):
                choice = self.expressions.settled(only(value))
                bound = any_of(*(guard for guard, _ in choice))
                if missing(negate(bound)):
                    self.expressions.end("ImportError", node, negate(bound))
                    self.flow.may_fail("ImportError", bound)
            if is_provided:
                value = self._import_provided(source, alias.name, node)
            elif owns(name) and not owns(source) and not self.library.is_module(name):
                value = self.expressions.import_module(name, node)
            self.names.own[alias.asname or alias.name] = only(value)

    def _import_provided(self, source: str, name: str, node: ast.ImportFrom) -> Value:
        """Import a name of the provider; record the use and the possible failures."""
        path = f"{source}:" if name == "*" else f"{source}:{name}"
        self.expressions.use("import", path, node, True)
        if self.flow.catcher("ModuleNotFoundError") != self.flow.catcher("ImportError"):
            self.flow.may_fail("ModuleNotFoundError", self.expressions.loaded(f"{source}:"))
        self.flow.may_fail("ImportError", self.expressions.loaded(path))
        return self.expressions.provided(Reference(path))

    # ------------------------------------------------------------ definitions

    def _functiondef(self, node: FunctionNode) -> None:
        routine = FunctionDefinition(node, self.location, self.names)
        defaults = [*node.args.defaults, *filter(None, node.args.kw_defaults)]
        annotations = [] if self.location.postponed else routine.annotations
        for expression in [*node.decorator_list, *defaults, *annotations]:
            self.expressions.value(expression)
        self.names.own[node.name] = only(routine)
        if self.blueprint:
            self.blueprint.definitions.append(routine)
        if self.recorder:
            # The constructor sets attributes that the other methods read.
            position = 0 if node.name == "__init__" else len(self.waiting)
            self.waiting.insert(position, (self, routine, self.recorder.reached(self.flow.here())))

    def read_function(self, routine: FunctionDefinition, guard: Guard) -> None:
        """Read a function that this body defines, which runs only where `guard` holds."""
        node, blueprint, reaches = routine.node, self.blueprint, self.library.reaches
        name = self.location.inside(node.name)
        method_of = blueprint if blueprint and not routine.decorators & {"staticmethod", "classmethod"} else None
        function = Function(name, guard, self.recorder.function if self.recorder else None)
        if method_of and node.name not in ("__init__", "__new__"):
            function.blueprints = tuple(method_of.constructed())
        names = Names(routine.parameters(Instance(blueprint) if blueprint else None), self.names.inside)
        location = replace(self.location, function=name)
        body = Reader(Evaluator(self.library, location, names, Recorder(reaches, function)))
        body.type_parameters(node)
        names.declare_globals(node)
        function.completes = body.outcome(body.read(node.body)).completes
        if method_of and node.name == "__init__":
            reaches.constructors[method_of] = function
            method_of.attributes = _set_only_there(node, function, method_of, names.own)
        if method_of and method_of.is_config and node.name in ("__init__", "__post_init__"):
            reaches.add_checks(function)
        body.read_functions()

    def type_parameters(self, node: FunctionNode) -> None:
        """Give parameters that are annotated with a class of the provider its type."""
        for slot in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]:
            if slot.annotation is not None and self.names.own.get(slot.arg) == only(Anything(slot.arg)):
                path = self.expressions.annotated(slot.annotation)
                self.names.own[slot.arg] = only(Anything(slot.arg, of_class=path))

    def _classdef(self, node: ast.ClassDef) -> None:
        for decorator in node.decorator_list:
            self.expressions.value(decorator)
        bases = tuple(map(self.expressions.value, node.bases))
        blueprint = ClassDefinition(node.name, bases, self.library.look_up, added_fields=added_fields(node))
        self.names.own[node.name] = only(blueprint)
        location = replace(self.location, function=self.location.inside(node.name))
        names, recorder = Names({}, self.names, of_class=True), self.recorder
        if recorder:
            recorder = replace(recorder, base=recorder.reached(self.flow.here()))
        evaluator = Evaluator(self.library, location, names, recorder, self.expressions.depth)
        body = Reader(evaluator, blueprint)
        body.read(node.body)
        for name, choice in names.own.items():
            if any(isinstance(value, FunctionDefinition) for _, value in choice):
                blueprint.methods[name] = choice  # a fork may define one in each branch
        blueprint.assigned = frozenset(names.own) - set(blueprint.methods)
        for guard, base in blueprint.provided_bases():
            for method in blueprint.definitions:
                name, signature = method.node.name, function_entry(method.node, member=True)
                if signature.endswith(")") and not (name.startswith("__") and name != "__init__"):
                    path = base.attribute(name).path
                    evaluator.use("override", path, method.node, guard, bound=blueprint.name, signature=signature)
        self.waiting += body.waiting

    _break = _continue = _leave
    _trystar = _try  # Python 3.11


def _is_incidental(guard: Guard) -> bool:
    """Return whether a guard only states that a loop or a case runs, or that another package is installed."""
    return all(
        isinstance(leaf, Config) and (leaf in (A_LOOP, A_CASE) or leaf.text.endswith(INSTALLED))
        for leaf in leaves(guard)
    )


def _has(body: Sequence[ast.stmt], kind: type[ast.AST]) -> bool:
    return any(isinstance(part, kind) for part in walk_all(body))


def _jumps(node: ast.For | ast.AsyncFor) -> bool:
    return any(isinstance(part, (ast.Break, ast.Continue, ast.Starred)) for part in ast.walk(node))


def _set_only_there(constructor: FunctionNode, function: Function, blueprint: ClassDefinition, scope: Scope) -> Scope:
    """Return the attributes that only the constructor sets, with their values as other methods read them.

    A local name of the constructor becomes `self.name`. `scope` are its names at its end.
    """
    changed = set_attributes(method.node for method in blueprint.definitions if method.node is not constructor)
    owner = constructor.args.args[0].arg if constructor.args.args else "self"
    attributes: Scope = {}
    for name, choice in scope.items():
        variable, _, attribute = name.partition(".")
        if variable == owner and attribute and attribute not in changed:
            values = [
                (elsewhere(guard, function), _as_attribute(value, attribute, function)) for guard, value in choice
            ]
            attributes[attribute] = gather(values)
    return attributes


def _as_attribute(value: Value, name: str, function: Function) -> Value:
    """Return a value of a constructor as other methods read it from an attribute."""
    if isinstance(value, Fact):
        return Fact(elsewhere(value.guard, function))
    return Anything(f"self.{name}") if isinstance(value, Anything) and is_local(value.text) else value
