"""Read the calls of a consuming package: the arguments to Transformer Engine, and calls that inspect it."""

from __future__ import annotations

import ast
import re
from abc import abstractmethod
from collections.abc import Collection, Sequence

from matrix.catalog import versions
from matrix.contract.definition import dotted
from matrix.contract.expression import Expressions, shown
from matrix.contract.guard import Config, Guard, Offers, all_of, any_of
from matrix.contract.usage import Arguments
from matrix.contract.value import (  # fmt: skip
    ANYTHING,
    OF_TE,
    UNKNOWN,
    Anything,
    Choice,
    ClassDefinition,
    Fact,
    FixedVersion,
    FunctionDefinition,
    Instance,
    Keywords,
    Literal,
    Method,
    Outside,
    ParametersOf,
    Reference,
    RunningVersion,
    Value,
    concerns_te,
    gather,
    merge,
    only,
    truth_of,
    under,
    updated,
)

VERSION_PARSERS = ("packaging.version.Version", "packaging.version.parse")
VERSION_READERS = ("importlib.metadata.version", "importlib_metadata.version")
SIGNATURE_READERS = ("inspect.signature", "inspect.getfullargspec")


class Invocations(Expressions):
    """Evaluates calls."""

    @abstractmethod
    def run(
        self, routine: FunctionDefinition, values: Sequence[Choice], call: ast.Call, owner: Instance | None
    ) -> Choice:
        """Return the value of a call to a function of the package; `owner` is the instance of a method."""

    @abstractmethod
    def import_module(self, name: str, node: ast.AST) -> Value:
        """Import a module by name."""

    def _call(self, node: ast.Call) -> Choice:
        func = node.func
        special = getattr(self, f"_call_{func.id}", None) if isinstance(func, ast.Name) else None
        if special is not None and self.names.find(dotted(func)) is None:
            result: Choice = special(node)
            return result
        if isinstance(func, ast.Attribute):
            callees = self._attribute(func, called=True)
        else:
            callees = self._name(func, called=True) if isinstance(func, ast.Name) else self.value(func)
        owner = self._instance_of(func)
        values, arguments = self.arguments(node)
        results: list[tuple[Guard, Value]] = []
        for guard, callee in callees:
            results += under(guard, self._result(callee, guard, values, arguments, node, owner))
        return gather(results)

    def _instance_of(self, func: ast.expr) -> Instance | None:
        """Return the instance behind self or super() if the call is to one of its methods."""
        inner = func.value if isinstance(func, ast.Attribute) else None
        if isinstance(inner, ast.Name) or (isinstance(inner, ast.Call) and dotted(inner.func) == "super"):
            for _, value in self.value(inner):
                if isinstance(value, Instance):
                    return value
        return None

    def _result(
        self, callee: Value, guard: Guard, values: Sequence[Choice], arguments: Arguments, node: ast.Call,
        owner: Instance | None,
    ) -> Choice:  # fmt: skip
        if isinstance(callee, Reference):
            self.use("call", callee.path, node, guard, arguments, bound=owner.name if owner else "")
            if re.match(r"_*[A-Z]", callee.path.rpartition(":")[2].rpartition(".")[2]):
                return only(Anything(of_class=callee.path))
        elif isinstance(callee, Method):
            self.use("method", callee.path, node, guard, arguments, bound="object")
        elif isinstance(callee, FunctionDefinition):
            return self.run(callee, values, node, owner)
        elif isinstance(callee, ClassDefinition):
            for inner, value in self.inherited(Instance(callee), "__init__"):
                if isinstance(value, Reference):
                    own = self._own_fields(callee)
                    passed = arguments if own is None else _without(arguments, own)
                    self.use("call", value.path, node, all_of(guard, inner), passed, bound=callee.name)
        elif isinstance(callee, Outside):
            return self._outside(callee.path, values, arguments, node)
        elif isinstance(callee, Anything) and callee.of_te:
            return only(OF_TE)
        return UNKNOWN

    def _own_fields(self, blueprint: ClassDefinition) -> frozenset[str] | None:
        """Return the fields that a dataclass and its bases in the package add; None where none is a dataclass."""
        fields = blueprint.own_fields
        for base in blueprint.bases:
            for _, value in self.settled(base):
                inherited = self._own_fields(value) if isinstance(value, ClassDefinition) else None
                fields = fields if inherited is None else (fields or frozenset()) | inherited
        return fields

    def _outside(self, path: str, values: Sequence[Choice], arguments: Arguments, node: ast.Call) -> Choice:
        """Return the value of a call to something in neither package; `values` are the positional arguments."""
        first = values[0] if values else UNKNOWN
        if path.endswith(VERSION_PARSERS):
            return gather((guard, _parsed(value)) for guard, value in first)
        named = self.provider.distributions
        if path in VERSION_READERS and any(isinstance(v, Literal) and v.value in named for _, v in first):
            return only(RunningVersion(parsed=False))
        if path in SIGNATURE_READERS:
            return gather((guard, _parameters_of(value)) for guard, value in first)
        if path == "importlib.import_module":
            modules = [
                (guard, self.import_module(value.value, node))
                for guard, value in first
                if isinstance(value, Literal) and isinstance(value.value, str)
            ]
            return gather(modules) or UNKNOWN
        if path == "functools.partial":
            for guard, value in first:
                if isinstance(value, Reference):
                    partly = Arguments(arguments.positional[1:], arguments.keywords, starred=True, open_keywords=True)
                    self.use("call", value.path, node, guard, partly)
        if path in ("str", "bool", "tuple", "list", "set"):
            return first
        return only(OF_TE if any(concerns_te(value) for choice in values for _, value in choice) else ANYTHING)

    def arguments(self, node: ast.Call) -> tuple[list[Choice], Arguments]:
        """Read the arguments of a call; return the values of the positional ones, and how all are passed."""
        values: list[Choice] = []
        positional: list[str] = []
        starred = False
        for argument in node.args:
            inner = argument.value if isinstance(argument, ast.Starred) else argument
            values.append(self.value(inner))
            starred = starred or inner is not argument
            if not starred:
                positional.append(dotted(argument).rpartition(".")[2])
        keywords: list[tuple[str, Guard]] = []
        open_keywords = False
        for keyword in node.keywords:
            choice = self.value(keyword.value)
            if keyword.arg is not None:
                keywords.append((keyword.arg, True))
                continue
            for guard, value in choice:
                if isinstance(value, Keywords):
                    passed = [(name, all_of(guard, inner)) for name, inner in value.entries]
                    keywords += [(name, when) for name, when in passed if when is not False]
                    open_keywords = open_keywords or value.open
                else:
                    open_keywords = True
        return values, Arguments(tuple(positional), tuple(keywords), starred, open_keywords)

    # --------------------------------------------------------------- builtins

    def _call_super(self, node: ast.Call) -> Choice:
        known = self.names.find("super()") or UNKNOWN
        named = self.value(node.args[0]) if node.args else ()
        # super(Other, self) continues behind another class.
        own = [one.blueprint for _, one in known if isinstance(one, Instance)]
        return known if all(value in own for _, value in named) else UNKNOWN

    def _call_hasattr(self, node: ast.Call) -> Choice:
        name = _text(node, 1)
        found: list[tuple[Guard, Value]] = []
        for guard, owner in self.value(node.args[0]):
            if isinstance(owner, Reference) and name:
                found.append((guard, Fact(Offers(owner.attribute(name).path))))
                continue
            if isinstance(owner, Literal) and name:  # getattr(module, "x", None)
                found.append((guard, Fact(hasattr(owner.value, name))))
                continue
            # Instance attributes of TE classes are not recorded, so the result is unknown.
            of_te = concerns_te(owner) or isinstance(owner, Reference) or self._is_te_instance(owner)
            found.append((guard, Anything(of_te=of_te)))
        return only(Fact(truth_of(gather(found), shown(node))))

    def _is_te_instance(self, owner: Value) -> bool:
        return isinstance(owner, Instance) and self.extends_te(owner.blueprint)

    def _call_getattr(self, node: ast.Call) -> Choice:
        name = _text(node, 1)
        default = self.value(node.args[2]) if len(node.args) > 2 else None
        owners = self.value(node.args[0])
        if not name:
            return UNKNOWN
        self.mention(name, called=False)
        found: list[tuple[Guard, Value]] = []
        for guard, owner in owners:
            for inner, value in self.attribute_of(owner, name):
                if isinstance(value, Reference) and default is not None:
                    found += under(all_of(guard, inner), merge(Offers(value.path), only(value), default))
                elif isinstance(value, Reference):
                    self.use("attribute", value.path, node, all_of(guard, inner))
                    found.append((all_of(guard, inner), value))
                else:
                    found.append((all_of(guard, inner), ANYTHING if default is not None else value))
        return gather(found)

    def _call_isinstance(self, node: ast.Call) -> Choice:
        tested, kinds = self.value(node.args[0]), self.value(node.args[1])
        if not any(isinstance(kind, Outside) and kind.path.endswith(VERSION_PARSERS) for _, kind in kinds):
            return only(Fact(Config(f"isinstance({', '.join(map(shown, node.args))})")))
        return only(Fact(any_of(*(guard for guard, value in tested if isinstance(value, RunningVersion)))))

    def _call_dict(self, node: ast.Call) -> Choice:
        values, arguments = self.arguments(node)
        added = [value for choice in values for _, value in choice]
        return only(updated(Keywords(), added, arguments.keywords, more=arguments.open_keywords))

    def _dict(self, node: ast.Dict) -> Choice:
        keywords = Keywords()
        for key, value in zip(node.keys, node.values, strict=True):
            choice = self.value(value)
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                keywords = keywords.put(key.value)
            elif key is None:
                keywords = updated(keywords, [inner for _, inner in choice], (), more=len(choice) > 1)
            else:
                keywords = Keywords(keywords.entries, open=True)
        return only(keywords)

    def _dictcomp(self, node: ast.DictComp) -> Choice:
        self.parts(node)
        return only(Keywords(open=True))


def _without(arguments: Arguments, own: Collection[str]) -> Arguments:
    """Return the arguments of a dataclass's constructor without those of the fields that it adds to its base."""
    keywords = tuple(pair for pair in arguments.keywords if pair[0] not in own)
    return Arguments((), keywords, starred=True, open_keywords=True)


def _text(node: ast.Call, place: int) -> str:
    argument = node.args[place] if len(node.args) > place else None
    return argument.value if isinstance(argument, ast.Constant) and isinstance(argument.value, str) else ""


def _parsed(value: Value) -> Value:
    if isinstance(value, RunningVersion):
        return RunningVersion(parsed=True)
    if isinstance(value, Literal) and isinstance(value.value, str) and versions.is_version(value.value):
        return FixedVersion(value.value)
    return OF_TE if concerns_te(value) else ANYTHING


def _parameters_of(value: Value) -> Value:
    return ParametersOf(value.path) if isinstance(value, Reference) else ANYTHING
