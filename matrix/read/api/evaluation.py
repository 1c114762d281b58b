"""Evaluate the calls of a consuming package: what they return, and which classes their objects have."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import product, takewhile
from typing import ClassVar

from matrix.read.api.definition import dotted, shown
from matrix.read.api.expressions import ExpressionVisitor, text_of
from matrix.read.api.flow import about_te
from matrix.read.api.guard import COMPARE, Config, Guard, Offers, Takes, TeVersion, all_of, any_of
from matrix.read.api.provider import Arguments
from matrix.read.api.scope import ClassDefinition, FunctionDefinition, Instance, Names, Scope
from matrix.read.api.value import (
    ANYTHING,
    OF_TE,
    UNKNOWN,
    Anything,
    Choice,
    Fact,
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
    constant,
    gather,
    guarded,
    merge,
    single,
    truth_of,
    values_of,
)

DEEPEST_RUN = 6  # nested functions that are evaluated for their return value; the deepest in any release is 4
VERSION_PARSERS = ("packaging.version.Version", "packaging.version.parse")
VERSION_READERS = ("importlib.metadata.version", "importlib_metadata.version")
SIGNATURE_READERS = ("inspect.signature", "inspect.getfullargspec", "dataclasses.fields")
COMPARISONS = {f"operator.{function.__name__}": sign for sign, function in COMPARE.items()}


@dataclass(frozen=True)
class Invocation:
    """A call: the values of its positional arguments, how all are passed, the instance of a method."""

    node: ast.Call
    values: Sequence[Choice]
    arguments: Arguments
    owner: Instance | None


class CallVisitor(ExpressionVisitor):
    """Evaluates the calls in the expressions of one body, and the classes of its objects."""

    # ---------------------------------------------------------------- classes

    def annotated(self, node: ast.expr) -> str:
        """Return the path of the provider's class that an annotation names, "" for others."""
        if isinstance(node, ast.Subscript) and dotted(node.value).rpartition(".")[2] == "Optional":
            return self.annotated(node.slice)
        if isinstance(node, ast.BinOp) and isinstance(node.right, ast.Constant) and node.right.value is None:
            return self.annotated(node.left)
        top, *attributes = dotted(node).split(".")
        for _, value in self.settled(self.names.find(top) or ()):
            if isinstance(value, Reference):
                return reduce(Reference.attribute, attributes, value).path
        return ""

    def narrowed(self, test: ast.expr | None) -> Scope:
        """Return the names that are objects of the provider's classes where a condition holds, with their classes.

        The condition is isinstance, or calls a function that returns it.
        """
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
            return {name: choice for part in test.values for name, choice in self.narrowed(part).items()}
        if not (isinstance(test, ast.Call) and test.args and isinstance(test.args[0], ast.Name)):
            return {}
        name = test.args[0].id
        (_, value), *alternatives = self.names.find(name) or UNKNOWN
        if alternatives or not isinstance(value, Anything) or value.of_class:
            return {}
        if dotted(test.func) == "isinstance":
            classes = [(guard, kind.path) for guard, kind in self.value(test.args[1]) if isinstance(kind, Reference)]
        else:
            classes = self._tested(test.func) if isinstance(test.func, ast.Name) and self.depth < DEEPEST_RUN else []
        choice = gather((guard, replace(value, of_class=path)) for guard, path in classes)
        return {name: choice} if choice else {}

    def _tested(self, func: ast.Name) -> list[tuple[Guard, str]]:
        """Return the classes of the provider of which a function tests its first argument."""
        classes: list[tuple[Guard, str]] = []
        for guard, routine in self.settled(self.names.find(func.id) or ()):
            if isinstance(routine, FunctionDefinition) and routine.slots:
                scope = self._inside(routine, routine.parameters()).narrowed(routine.result)
                objects = guarded(guard, scope.get(routine.slots[0].arg, ()))
                classes += [(reached, value.of_class) for reached, value in objects if isinstance(value, Anything)]
        return classes

    # ------------------------------------------------------------------ calls

    def visit_Call(self, node: ast.Call) -> Choice:
        """Evaluate a call, which may change a dictionary of keywords: its own, or one passed to another function."""
        func = node.func
        if isinstance(func, ast.Attribute) and self._changes_keywords(node, func):
            return UNKNOWN
        choice = self._invoke(node)
        if dotted(func) not in ("dict", "len", "list", "sorted"):
            for argument in node.args:
                self.change(argument, Keywords.opened)
        return choice

    def _changes_keywords(self, node: ast.Call, func: ast.Attribute) -> bool:
        if func.attr not in ("update", "pop", "setdefault"):
            return False
        choices, arguments = self.arguments(node)
        name = text_of(node.args[0]) if node.args else None

        def change(keywords: Keywords) -> Keywords:
            if name:
                return keywords.drop(name) if func.attr == "pop" else keywords.put(name)
            return keywords.updated(values_of(choices), arguments.keywords, more=arguments.open_keywords)

        return self.change(func.value, change)

    def _invoke(self, node: ast.Call) -> Choice:
        func = node.func
        if isinstance(func, ast.Name) and func.id in self._BUILTINS and self.names.find(func.id) is None:
            return self._BUILTINS[func.id](self, node)
        if isinstance(func, ast.Attribute):
            callees = self.visit_Attribute(func, called=True)
        else:
            callees = self.visit_Name(func, called=True) if isinstance(func, ast.Name) else self.value(func)
        for guard, callee in callees:
            if callee == Literal(None):
                self.end("TypeError", node, guard)
        owner = self._instance_of(func)
        call = Invocation(node, *self.arguments(node), owner)
        return gather(pair for guard, callee in callees for pair in guarded(guard, self._result(callee, guard, call)))

    def _instance_of(self, func: ast.expr) -> Instance | None:
        """Return the instance behind self or super() if the call is to one of its methods."""
        owner = func.value if isinstance(func, ast.Attribute) else None
        if isinstance(owner, ast.Name) or (isinstance(owner, ast.Call) and dotted(owner.func) == "super"):
            return next((value for _, value in self.value(owner) if isinstance(value, Instance)), None)
        return None

    def arguments(self, node: ast.Call) -> tuple[list[Choice], Arguments]:
        """Read the arguments of a call; return the values of the positional ones, and how all are passed."""
        choices = [self.value(arg.value if isinstance(arg, ast.Starred) else arg) for arg in node.args]
        plain = list(takewhile(lambda argument: not isinstance(argument, ast.Starred), node.args))
        positional = tuple(dotted(argument).rpartition(".")[2] for argument in plain)
        keywords: list[tuple[str, Guard]] = []
        open_keywords = False
        for keyword in node.keywords:
            choice = self.value(keyword.value)
            if keyword.arg is not None:
                keywords.append((keyword.arg, True))
                continue
            for guard, value in choice:
                passed = [(name, all_of(guard, condition)) for name, condition in value.entries]
                keywords += [entry for entry in passed if entry[1] is not False]
                open_keywords = open_keywords or value.open
        return choices, Arguments(positional, tuple(keywords), len(plain) < len(node.args), open_keywords)

    def _result(self, callee: Value, guard: Guard, call: Invocation) -> Choice:
        if isinstance(callee, Reference):
            bound = call.owner.name if call.owner else ""
            self.use("call", callee.path, call.node, guard, call.arguments, bound=bound)
            is_class = re.match(r"_*[A-Z]", callee.path.rpartition(":")[2].rpartition(".")[2])
            return single(Anything(of_class=callee.path)) if is_class else UNKNOWN
        if isinstance(callee, Method):
            self.use("method", callee.path, call.node, guard, call.arguments, bound="object")
        elif isinstance(callee, FunctionDefinition):
            self._set_names(call)
            return self._run(callee, call)
        elif isinstance(callee, ClassDefinition):
            self._construct(callee, guard, call)
        elif isinstance(callee, Outside):
            self._set_names(call)
            return self._outside(callee.path, call)
        elif isinstance(callee, Anything):
            return single(callee.computed())
        elif isinstance(callee, ParametersOf) and call.values:  # its method `get`
            name = _name(call.values[0])
            return merge(Takes(callee.path, name), single(Fact(True)), single(Literal(None))) if name else single(OF_TE)
        return single(callee) if isinstance(callee, ParametersOf) else UNKNOWN

    def _set_names(self, call: Invocation) -> None:
        """Record that a function which gets a module of the provider and a private name may set it there."""
        values = [pair for choice in call.values for pair in choice]
        names = [value.value for _, value in values if isinstance(value, Literal)]
        for (guard, owner), name in product(values, names):
            if isinstance(owner, Reference) and isinstance(name, str) and name.startswith("_") and name.isidentifier():
                self.use("patch", owner.attribute(name).path, call.node, guard, bound="object")

    def _construct(self, blueprint: ClassDefinition, guard: Guard, call: Invocation) -> None:
        """Record the call of an inherited constructor; a dataclass passes on what its own fields do not take."""
        for condition, value in blueprint.method("__init__"):
            if isinstance(value, Reference):
                arguments, fields = call.arguments, blueprint.fields()
                if fields is not None:
                    keywords = tuple(pair for pair in arguments.keywords if pair[0] not in fields)
                    arguments = Arguments((), keywords, starred=True, open_keywords=True)
                self.use("call", value.path, call.node, all_of(guard, condition), arguments, bound=blueprint.name)

    def _run(self, routine: FunctionDefinition, call: Invocation) -> Choice:
        """Return the value of a call to a function of the package, UNKNOWN for a function that is not about TE."""
        if self.depth >= DEEPEST_RUN or not routine.bears_on_te(self.library.mentions):
            return UNKNOWN
        is_method = call.owner is not None and "staticmethod" not in routine.decorators
        scope = routine.parameters(call.owner if is_method else None)
        body, slots, defaults = self._inside(routine, scope), routine.slots, routine.node.args.defaults
        for slot, default in zip(slots[len(slots) - len(defaults) :], defaults, strict=True):
            scope[slot.arg] = body.value(default)
        for slot, argument, choice in zip(slots[is_method:], call.node.args, call.values, strict=False):
            scope[slot.arg] = UNKNOWN if isinstance(argument, ast.Starred) else choice
        for keyword in call.node.keywords:
            if keyword.arg in scope:
                scope[keyword.arg] = self.value(keyword.value)
        body.names.declare_globals(routine.node)
        key = tuple(scope.items())
        result = routine.returned.get(key)
        if result is None:
            result = self.library.returned(routine, body.names, body.depth)
            if routine.home.finished:
                routine.returned[key] = result
        returned = about_te(result.completes)
        if call.node is self.statement:
            self.flow.assume(returned)
        is_provided = any(isinstance(value, Reference) for _, value in result.value)
        return gather(guarded(returned, result.value)) if is_provided else result.value

    def _inside(self, routine: FunctionDefinition, scope: Scope) -> CallVisitor:
        """Return an evaluator of a function with these parameters, which records nothing."""
        return CallVisitor(self.library, routine.location, Names(scope, routine.home.inside), depth=self.depth + 1)

    def _outside(self, path: str, call: Invocation) -> Choice:
        """Return the value of a call to something in neither package."""
        subject = call.values[0] if call.values else UNKNOWN
        if path.endswith(VERSION_PARSERS):
            return gather((guard, value.as_version()) for guard, value in subject)
        texts = [(guard, value.value) for guard, value in subject if isinstance(value, Literal)]
        if path in self.provider.version_getters:
            return single(RunningVersion(parsed=True))
        if path in self.provider.minimum_checks:
            given = [*call.node.args, *(keyword.value for keyword in call.node.keywords)]
            sign = ">" if any(isinstance(part, ast.Constant) and part.value is False for part in given) else ">="
            return gather((guard, Fact(TeVersion(sign, str(text)))) for guard, text in texts) or UNKNOWN
        if path in VERSION_READERS and any(text in self.provider.distributions for _, text in texts):
            return single(RunningVersion(parsed=False))
        references = [(guard, value.path) for guard, value in subject if isinstance(value, Reference)]
        if path in COMPARISONS and len(call.values) == 2:
            return _ordered(COMPARISONS[path], *call.values)
        if path in SIGNATURE_READERS:
            pairs = ((guard, value.path if isinstance(value, Reference) else "") for guard, value in subject)
            return gather((guard, ParametersOf(path) if path else ANYTHING) for guard, path in pairs)
        if path == "importlib.import_module":
            modules = [(guard, self.import_module(name, call.node)) for guard, name in texts if isinstance(name, str)]
            return gather(modules) or UNKNOWN
        if path == "importlib.util.find_spec" and len(texts) == 1 and self.provider.owns(str(texts[0][1])):
            offered = Offers(f"{texts[0][1]}:")
            return merge(offered, single(Fact(True)), single(Literal(None)))
        if path == "functools.partial":
            passed = call.arguments
            partly = Arguments(passed.positional[1:], passed.keywords, starred=True, open_keywords=True)
            for guard, reference in references:
                self.use("call", reference, call.node, guard, partly)
        if path in ("str", "bool", "tuple", "list", "set"):  # the result stands for the argument
            return subject
        return computed_from(values_of(call.values))

    # --------------------------------------------------------------- builtins

    def _super(self, node: ast.Call) -> Choice:
        choice = self.names.find("super()") or UNKNOWN
        classes = [value.blueprint for _, value in choice if isinstance(value, Instance)]
        arguments = values_of([self.value(node.args[0])] if node.args else [])
        # super(Other, self) continues behind another class.
        return choice if all(argument in classes for argument in arguments) else UNKNOWN

    def _hasattr(self, node: ast.Call) -> Choice:
        name = _name(self.value(node.args[1]))
        owners = self.value(node.args[0])
        return single(Fact(truth_of(gather((guard, _existence(owner, name)) for guard, owner in owners), shown(node))))

    def _getattr(self, node: ast.Call) -> Choice:
        name = text_of(node.args[1]) if len(node.args) > 1 else None
        default = self.value(node.args[2]) if len(node.args) > 2 else None
        owners = self.value(node.args[0])
        if not name:
            return UNKNOWN
        self._mention(name, called=False)
        alternatives: list[tuple[Guard, Value]] = []
        for guard, owner in owners:
            for condition, value in self._attribute_of(owner, name):
                reached, choice = all_of(guard, condition), single(value)
                if default is not None:
                    if isinstance(value, Reference):
                        choice = merge(Offers(value.path), choice, default)
                    elif not isinstance(value, ParametersOf):
                        choice = UNKNOWN
                elif isinstance(value, Reference):
                    self.use("attribute", value.path, node, reached)
                alternatives += guarded(reached, choice)
        return gather(alternatives)

    def _setattr(self, node: ast.Call) -> Choice:
        choices, _ = self.arguments(node)
        for value in values_of(choices[1:2]) if len(choices) > 2 else ():
            if isinstance(value, Literal) and isinstance(value.value, str):
                self.patch(node.args[0], value.value, node, choices[2])
        return UNKNOWN

    def _isinstance(self, node: ast.Call) -> Choice:
        choice, kinds = self.value(node.args[0]), self.value(node.args[1])
        if kinds == single(Outside("str")) and all(value.is_text is not None for _, value in choice):
            return single(Fact(any_of(*(guard for guard, value in choice if value.is_text))))
        if not any(isinstance(kind, Outside) and kind.path.endswith(VERSION_PARSERS) for _, kind in kinds):
            return single(Fact(Config(f"isinstance({', '.join(map(shown, node.args))})")))
        return single(Fact(any_of(*(guard for guard, value in choice if isinstance(value, RunningVersion)))))

    def _issubclass(self, node: ast.Call) -> Choice:
        """Evaluate issubclass(); a constant of a class, such as self.PROVIDER, is the code's decision."""
        choices, _ = self.arguments(node)
        is_constant = any(dotted(argument).rpartition(".")[2].isupper() for argument in node.args[:1])
        return single(OF_TE) if is_constant else computed_from(values_of(choices))

    def _any(self, node: ast.Call) -> Choice:
        """Evaluate any(); over the kinds of a signature's parameters, whether it takes other keywords."""
        generator = node.args[0] if node.args else None
        if isinstance(generator, ast.GeneratorExp) and "VAR_KEYWORD" in ast.unparse(generator.elt):
            choice = self.value(generator.generators[0].iter)
            takes = [(guard, Takes(value.path, "**")) for guard, value in choice if isinstance(value, ParametersOf)]
            if takes:
                return single(Fact(any_of(*(all_of(guard, condition) for guard, condition in takes))))
        return self._joined(node, any_of)

    def _all(self, node: ast.Call) -> Choice:
        return self._joined(node, all_of)

    def _joined(self, node: ast.Call, join: Callable[..., Guard]) -> Choice:
        """Evaluate any() or all() of a list, or of a comprehension over constants."""
        items = node.args[0] if node.args else None
        if isinstance(items, (ast.List, ast.Tuple, ast.Set)):
            return single(Fact(join(*map(self.truth, items.elts))))
        loops = items.generators if isinstance(items, (ast.GeneratorExp, ast.ListComp)) else []
        constants = constant(self.value(loops[0].iter)) if len(loops) == 1 and not loops[0].ifs else None
        if isinstance(constants, tuple) and isinstance(items, (ast.GeneratorExp, ast.ListComp)):
            outer, guards = self.names.own, list[Guard]()
            for item in constants:
                self.names.own = {**outer, dotted(loops[0].target): single(Literal(item))}
                guards.append(self.truth(items.elt))
            self.names.own = outer
            return single(Fact(join(*guards)))
        choices, _ = self.arguments(node)
        return computed_from(values_of(choices))

    def _new_dict(self, node: ast.Call) -> Choice:
        choices, arguments = self.arguments(node)
        return single(Keywords().updated(values_of(choices), arguments.keywords, more=arguments.open_keywords))

    _BUILTINS: ClassVar[Mapping[str, Callable[[CallVisitor, ast.Call], Choice]]] = {
        "all": _all,
        "any": _any,
        "dict": _new_dict,
        "getattr": _getattr,
        "hasattr": _hasattr,
        "isinstance": _isinstance,
        "issubclass": _issubclass,
        "setattr": _setattr,
        "super": _super,
    }


def _ordered(sign: str, left: Choice, right: Choice) -> Choice:
    """Return the truth value of a comparison by a function of the module operator."""
    alternatives: list[tuple[Guard, Value]] = []
    for (guard, operand), (condition, comparand) in product(left, right):
        holds = compare_versions(sign, operand, comparand)
        value = Fact(holds) if holds is not None else Anything(of_te=operand.of_te or comparand.of_te)
        alternatives.append((all_of(guard, condition), value))
    return gather(alternatives)


def _existence(owner: Value, name: str) -> Value:
    """Return whether a value has an attribute; instance attributes of TE classes are not recorded."""
    if isinstance(owner, Reference) and name:
        return Fact(Offers(owner.attribute(name).path))
    if isinstance(owner, Literal) and name:  # getattr(module, "x", None)
        return Fact(hasattr(owner.value, name))
    extends_te = isinstance(owner, Instance) and bool(owner.blueprint.provided_bases())
    return Anything(of_te=owner.of_te or isinstance(owner, Reference) or extends_te)


def _name(choice: Choice) -> str:
    """Return the string that a value certainly is, "" for another value."""
    name = constant(choice)
    return name if isinstance(name, str) else ""
