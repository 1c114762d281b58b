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

from matrix.read.api.definition import absolute, dotted, function_entry, raised_name
from matrix.read.api.evaluation import CallVisitor
from matrix.read.api.expressions import Library, installed, text_of
from matrix.read.api.flow import Attempt, Function, Recorder, elsewhere, is_local
from matrix.read.api.guard import INSTALLED, Config, Guard, all_of, any_of, guard_parts, leaves, missing, negate
from matrix.read.api.provider import Site, Use
from matrix.read.api.scope import (
    BodyLocation,
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
from matrix.read.api.value import (
    UNKNOWN,
    Anything,
    Choice,
    Fact,
    InPackage,
    Literal,
    Outside,
    Reference,
    Value,
    constant,
    gather,
    guarded,
    merge,
    single,
)

STORED = re.compile(r"isinstance\([\w.]+, (Base)?Exception\)")  # an exception that was caught elsewhere
A_LOOP, A_CASE = Config("a loop"), Config("a case")  # that they run is no condition to show
JUMPS = (ast.Break, ast.Continue, ast.Starred)  # with one, a loop is not read once for each element
MOST_ROUNDS = 16  # iterations of a loop over constants that are read one by one; the longest in any release has 4


class BodyVisitor(CallVisitor):
    """Reads the statements of one module, class or function: `visit_X` reads a statement of the class X.

    `blueprint` is the class whose body it is; `completes` the guard under which its end is reached, once it is read.
    """

    completes: Guard = True

    def __init__(
        self,
        library: Library,
        location: BodyLocation,
        names: Names,
        recorder: Recorder | None = None,
        depth: int = 0,
        blueprint: ClassDefinition | None = None,
    ) -> None:
        super().__init__(library, location, names, recorder, depth)
        self.blueprint = blueprint
        self.returns: list[tuple[Guard, Choice]] = []
        self.waiting: list[tuple[BodyVisitor, FunctionDefinition, Guard]] = []  # functions defined here, read later
        self._bindings: dict[str, int] = {}

    def read(self, statements: Sequence[ast.stmt]) -> BodyVisitor:
        """Read the statements without their function bodies."""
        self.block(statements)
        self.names.finished, self.completes = True, all_of(*self.flow.path)
        return self

    def read_functions(self, reached: Guard = True) -> None:
        """Read the functions defined in this body, which run only where `reached` holds."""
        while self.waiting:
            reader, routine, guard = self.waiting.pop(0)
            reader.read_function(routine, all_of(guard, reached))

    def outcome(self) -> ReturnValue:
        """Return the return value of the function whose body was read."""
        pairs = [pair for guard, choice in self.returns for pair in guarded(guard, choice)]
        choice = gather([*pairs, (self.completes, Literal(None))])
        if len(choice) == 1:
            choice = single(choice[0][1])  # in all other cases it raises
        return ReturnValue(choice, any_of(self.completes, *(guard for guard, _ in self.returns)))

    # --------------------------------------------------------------- branches

    def block(self, statements: Sequence[ast.stmt]) -> None:
        """Read statements up to the first unreachable one."""
        for statement in statements:
            if self.flow.path[-1] is False:
                return
            self.visit(statement)

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
                joined[name] = gather(guarded(guard, if_true) if if_true else guarded(negate(guard), if_false))
        self.names.own = joined

    def visit_If(self, node: ast.If) -> None:
        """Read both branches, each where its condition holds; go on where one reaches its end."""
        condition = self.truth(node.test)
        end, scope = self.branch(node.body, condition, self.narrowed(node.test))
        else_end, else_scope = self.branch(node.orelse, negate(condition))
        if end is not False and else_end is not False:
            self.join(condition, scope, else_scope)
        elif end is not False or else_end is not False:
            self.names.own = else_scope if end is False else scope
        if not (end is True and else_end is True):
            self.flow.assume(any_of(all_of(condition, end), all_of(negate(condition), else_end)))

    def visit_Assert(self, node: ast.Assert) -> None:
        """Go on where the condition holds."""
        holds = self.truth(node.test)
        self.end("AssertionError", node, negate(holds), refused=("AssertionError",))
        self.flow.assume(holds)

    def visit_Raise(self, node: ast.Raise) -> None:
        """End the block; record an error that a missing name of the provider causes."""
        name = raised_name(node)
        if self.recorder and name:
            error = name if name[0].isupper() else "Exception"
            inner, function = self.flow.path[-2:], self.recorder.function
            cause = all_of(*inner, function.guard if function and not inner[1:] else True)
            self.end(error, node, cause, refused=(error,))
            if any(isinstance(part, Config) and STORED.fullmatch(part.text) for part in guard_parts(inner[0])):
                site = Site(self.location.path, node.lineno, self.location.function)
                end = Use("end", "", site, True, effect=error, refused=(error,))
                self.recorder.reaches.rethrows.setdefault(site.path, end)
        self.parts(node)
        self.visit_Break(node)

    def visit_Break(self, node: ast.stmt) -> None:
        """End the block: what comes after is not reached."""
        self.flow.path[-1] = False

    def visit_Return(self, node: ast.Return) -> None:
        """End the block with a value."""
        reached = self.flow.here()
        self.returns.append((reached, self.value(node.value) if node.value else single(Literal(None))))
        self.visit_Break(node)

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        """Read a loop over few constants or expressions once for each, any other once."""
        items = constant(self.value(node.iter))
        if isinstance(items, tuple) and len(items) <= MOST_ROUNDS:
            for item in items:
                self._bind(node.target, None, single(Literal(item)))
                self.block(node.body)
        elif (
            isinstance(node.iter, (ast.Tuple, ast.List))
            and len(node.iter.elts) <= MOST_ROUNDS
            and not _has([node], *JUMPS)
        ):
            for element in node.iter.elts:
                self._bind(node.target, element, self.value(element))
                self.block(node.body)
        else:
            self._bind(node.target, None, UNKNOWN)
            self._loop(node.body)
        self.block(node.orelse)

    def visit_While(self, node: ast.While) -> None:
        """Read a loop once."""
        self.value(node.test)
        self._loop(node.body)
        self.block(node.orelse)

    def _loop(self, body: Sequence[ast.stmt]) -> None:
        """Read a loop body; names then have the values after an iteration or, without an iteration, before it."""
        _, scope = self.branch(body, True)
        self.join(A_LOOP, scope, self.names.own)

    def visit_With(self, node: ast.With | ast.AsyncWith) -> None:
        """Read a block, as a try statement where a context manager catches exceptions."""
        for item in node.items:
            self.value(item.context_expr)
            if item.optional_vars is not None:
                self._bind(item.optional_vars, None, UNKNOWN)
        handlers = [handler for item in node.items for handler in self._swallowing(item.context_expr)]
        if handlers:
            self.visit_Try(ast.Try(node.body, handlers, [], []))
        else:
            self.block(node.body)

    def _swallowing(self, context: ast.expr) -> list[ast.ExceptHandler]:
        """Return what a context manager catches: contextlib.suppress, or a generator around its yield."""
        name = dotted(context.func) if isinstance(context, ast.Call) else ""
        if isinstance(context, ast.Call) and name.rpartition(".")[2] == "suppress":
            return [ast.ExceptHandler(ast.Tuple(context.args, ast.Load()), None, [ast.Pass()])]
        choice = self.settled(self.names.find(name) or ()) if name else ()
        routines = [value.node for _, value in choice if isinstance(value, FunctionDefinition)]
        tries = [part for routine in routines for part in routine.body if isinstance(part, ast.Try)]
        handlers = [handler for part in tries if _has(part.body, ast.Yield) for handler in part.handlers]
        endings = {True: ast.Raise(None, None), False: ast.Pass()}
        return [ast.ExceptHandler(part.type, None, [endings[_has(part.body, ast.Raise)]]) for part in handlers]

    def visit_Match(self, node: ast.Match) -> None:
        """Read each case as a branch that may run."""
        self.value(node.subject)
        for case in node.cases:
            _, scope = self.branch(case.body, A_CASE)
            self.join(A_CASE, scope, self.names.own)

    def visit_Try(self, node: ast.Try) -> None:
        """Read the block, then each handler where the block fails so that it catches."""
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

    def visit_Expr(self, node: ast.Expr) -> None:
        """Read an expression that is a statement by itself."""
        self.statement = node.value
        self.value(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        """Bind each target; a call whose result is unpacked has the number of names."""
        target = node.targets[0]
        if isinstance(target, (ast.Tuple, ast.List)) and isinstance(node.value, ast.Call):
            starred = any(isinstance(element, ast.Starred) for element in target.elts)
            self.unpacks[node.value] = 0 if starred else len(target.elts)
        choice = self.value(node.value)
        for target in node.targets:
            self._bind(target, node.value, choice)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Bind a target if it gets a value."""
        if node.value is not None:
            self._bind(node.target, node.value, self.value(node.value))

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        """Bind a target to a value that is not known."""
        self.value(node.value)
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
                self._bind(element, part, self.value(part))
        elif isinstance(target, ast.Attribute):
            owner = self.names.find(target.value.id) if isinstance(target.value, ast.Name) else None
            if owner and isinstance(owner[0][1], Instance):
                self.names.own[dotted(target)] = self._named(dotted(target), choice)
            else:
                self.patch(target.value, target.attr, target, choice)
        elif isinstance(target, ast.Subscript):
            self.value(target.slice)
            name = text_of(target.slice)
            if name and dotted(target.value) == "sys.modules" and self.library.provider.owns(name):
                self.use("patch", f"{name}:", target, True, bound="object")
            self.change(target.value, lambda keywords: keywords.put(name) if name else keywords.opened())

    def _named(self, name: str, choice: Choice) -> Choice:
        """Return `choice`, or for an unknown value one named after its variable; each rebinding adds a prime."""
        of_class = choice[0][1].of_class if len(choice) == 1 and isinstance(choice[0][1], Anything) else ""
        if choice != UNKNOWN and not of_class:
            return choice
        is_held = "." in name and not self.location.function.endswith("__init__")  # an attribute set before this call
        rebindings = self._bindings.get(name, int(name in self.names.own or is_held))
        self._bindings[name] = rebindings + 1
        return single(Anything(name + "'" * rebindings, of_class=of_class))

    def visit_Import(self, node: ast.Import) -> None:
        """Read `import a.b as c`."""
        for alias in node.names:
            module = self.import_module(alias.name, node)
            top = alias.name.partition(".")[0]
            package: Mapping[type[Value], Value] = {Reference: Reference(f"{top}:"), InPackage: InPackage(top)}
            value = module if alias.asname else package.get(type(module), Outside(top))
            self.names.own[alias.asname or top] = single(value)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """Read `from a import b`, `from a import *`."""
        source = absolute("." * node.level + (node.module or ""), self.location.module, self.location.is_package)
        is_inside, owns = self.library.is_module(source), self.library.provider.owns
        is_provided = owns(source) and not is_inside
        if not is_provided:
            self.flow.may_fail("ImportError", self.library.loads(source) if is_inside else installed(source))
        names = self.library.exported(source) if is_inside and node.names[0].name == "*" else []
        # Settled, since two modules may import * from one another.
        self.names.own |= {name: self.settled(single(InPackage(source, name))) for name in names}
        for alias in node.names:
            name = f"{source}.{alias.name}"  # `from megatron import core`
            value: Value = InPackage(source, alias.name) if is_inside else Outside(name)
            if is_inside and self.library.mentions(source):
                choice = self.settled(single(value))
                bound = any_of(*(guard for guard, _ in choice))
                if missing(negate(bound)):
                    self.end("ImportError", node, negate(bound))
                    self.flow.may_fail("ImportError", bound)
            if is_provided:
                value = self._import_provided(source, alias.name, node)
            elif owns(name) and not owns(source) and not self.library.is_module(name):
                value = self.import_module(name, node)
            self.names.own[alias.asname or alias.name] = single(value)

    def _import_provided(self, source: str, name: str, node: ast.ImportFrom) -> Value:
        """Import a name of the provider; record the use and the possible failures."""
        path = f"{source}:" if name == "*" else f"{source}:{name}"
        self.use("import", path, node, True)
        if self.flow.catcher("ModuleNotFoundError") != self.flow.catcher("ImportError"):
            self.flow.may_fail("ModuleNotFoundError", self.loaded(f"{source}:"))
        self.flow.may_fail("ImportError", self.loaded(path))
        return self.provided(Reference(path))

    # ------------------------------------------------------------ definitions

    def visit_FunctionDef(self, node: FunctionNode) -> None:
        """Bind a function, whose body is read later."""
        routine = FunctionDefinition(node, self.location, self.names)
        defaults = [*node.args.defaults, *filter(None, node.args.kw_defaults)]
        annotations = [] if self.location.postponed else routine.annotations
        for expression in [*node.decorator_list, *defaults, *annotations]:
            self.value(expression)
        self.names.own[node.name] = single(routine)
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
        body = BodyVisitor(self.library, location, names, Recorder(reaches, function))
        body.type_parameters(node)
        names.declare_globals(node)
        function.completes = body.read(node.body).outcome().completes
        if method_of and node.name == "__init__":
            reaches.constructors[method_of] = function
            method_of.attributes = _set_only_there(node, function, method_of, names.own)
        if method_of and method_of.is_config and node.name in ("__init__", "__post_init__"):
            reaches.add_checks(function)
        body.read_functions()

    def type_parameters(self, node: FunctionNode) -> None:
        """Give parameters that are annotated with a class of the provider its type."""
        for slot in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]:
            if slot.annotation is not None and self.names.own.get(slot.arg) == single(Anything(slot.arg)):
                path = self.annotated(slot.annotation)
                self.names.own[slot.arg] = single(Anything(slot.arg, of_class=path))

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Read the body of a class, then hold its methods against the provider's classes that it extends."""
        for decorator in node.decorator_list:
            self.value(decorator)
        bases = tuple(map(self.value, node.bases))
        blueprint = ClassDefinition(node.name, bases, self.library.look_up, added_fields=added_fields(node))
        self.names.own[node.name] = single(blueprint)
        location = replace(self.location, function=self.location.inside(node.name))
        names, recorder = Names({}, self.names, of_class=True), self.recorder
        if recorder:
            recorder = replace(recorder, base=recorder.reached(self.flow.here()))
        body = BodyVisitor(self.library, location, names, recorder, self.depth, blueprint)
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
                    body.use("override", path, method.node, guard, bound=blueprint.name, signature=signature)
        self.waiting += body.waiting

    visit_Continue = visit_Break
    visit_AsyncFor, visit_AsyncFunctionDef, visit_AsyncWith = visit_For, visit_FunctionDef, visit_With
    visit_TryStar = visit_Try  # Python 3.11


def _is_incidental(guard: Guard) -> bool:
    """Return whether a guard only states that a loop or a case runs, or that another package is installed."""
    return all(
        isinstance(leaf, Config) and (leaf in (A_LOOP, A_CASE) or leaf.text.endswith(INSTALLED))
        for leaf in leaves(guard)
    )


def _has(body: Sequence[ast.stmt], *kinds: type[ast.AST]) -> bool:
    return any(isinstance(part, kinds) for part in walk_all(body))


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
