"""The scopes of a consuming package: the names of its bodies, its functions and its classes."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

from matrix.read.api.definition import called, dotted
from matrix.read.api.guard import Guard, all_of, names_te
from matrix.read.api.value import (
    UNKNOWN,
    Anything,
    Choice,
    Keywords,
    Literal,
    LookUp,
    Mentions,
    OfTheRun,
    Reference,
    Value,
    gather,
    guarded,
    settled,
    single,
)

Scope: TypeAlias = "dict[str, Choice]"
FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

LONGEST_RUN = 60  # statements of a function that is evaluated: is_te_min_version has 8, a support check 45


@dataclass(frozen=True)
class BodyLocation:
    """The location of a body in the package. `postponed`: its annotations are not evaluated."""

    module: str
    path: str
    is_package: bool
    postponed: bool = False
    function: str = ""

    def inside(self, name: str) -> str:
        """Return the qualified name of a function or class that this body defines."""
        return f"{self.function}.{name}" if self.function else name


@dataclass
class Names:
    """The names of one body and of the bodies around it. `finished`: the body was read to its end.

    `initial` holds the constants of a module that a function reassigns: their values until then; for other functions
    they are unknown.
    """

    own: Scope = field(default_factory=dict)
    around: Names | None = None
    of_class: bool = False
    finished: bool = False
    initial: Scope = field(default_factory=dict)

    def reassign(self, name: str) -> None:
        """Make a constant unknown to the functions that only read it."""
        choice = self.own.get(name)
        if choice and all(isinstance(value, Literal) for _, value in choice):
            self.initial[name], self.own[name] = choice, single(Anything(name))

    @property
    def module(self) -> Names:
        """Return the names of the module."""
        return self.around.module if self.around else self

    @property
    def inside(self) -> Names:
        """Return the enclosing names of a function defined in this body: a class is no scope of its methods."""
        return self.around if self.of_class and self.around else self

    def find(self, name: str) -> Choice | None:
        """Return the values of a name, from the innermost body outwards; None if it is unbound."""
        if name in self.own:
            return self.own[name]
        return self.around.find(name) if self.around else None

    def declare_globals(self, node: FunctionNode) -> None:
        """Give the constants of the module that a function reassigns the values that its first call finds.

        So `if _version is None: _version = ...` returns that version.
        """
        initial = self.module.initial
        for statement in ast.walk(node) if initial else ():
            names = statement.names if isinstance(statement, ast.Global) else ()
            self.own.update({name: initial[name] for name in names if name in initial})

    def unbound(self, name: str) -> Choice | None:
        """Return the values of a name that this body has not bound; `self.x` is an attribute of the instance."""
        owner, _, attribute = name.partition(".")
        if attribute:
            instances = (value for _, value in self.find(owner) or () if isinstance(value, Instance))
            return next((instance.held(attribute) for instance in instances), None)
        return self.around.find(name) if self.around else None


@dataclass(frozen=True)
class ReturnValue:
    """The return value of a function, and the guard under which it returns rather than raises."""

    value: Choice
    completes: Guard


@dataclass(eq=False)
class FunctionDefinition(Value):
    """A function of the consuming package, the location of the body that defines it, and the names of that body.

    `returned` caches the return values by arguments.
    """

    node: FunctionNode
    location: BodyLocation
    home: Names
    returned: dict[tuple[object, ...], ReturnValue] = field(default_factory=dict, repr=False)
    _bears_on_te: bool | None = None

    @property
    def decorators(self) -> set[str]:
        """Return the plain names of its decorators."""
        return {node.id for node in self.node.decorator_list if isinstance(node, ast.Name)}

    @property
    def slots(self) -> list[ast.arg]:
        """Return the parameters that take positional arguments."""
        return [*self.node.args.posonlyargs, *self.node.args.args]

    @property
    def result(self) -> ast.expr | None:
        """Return the expression that its last statement returns."""
        end = self.node.body[-1]
        return end.value if isinstance(end, ast.Return) else None

    @property
    def annotations(self) -> list[ast.expr]:
        """Return the annotations of its parameters and of its return value."""
        arguments = self.node.args
        slots = [*self.slots, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        annotations = [slot.annotation for slot in slots if slot is not None]
        return [annotation for annotation in [*annotations, self.node.returns] if annotation is not None]

    def parameters(self, owner: Instance | None = None) -> Scope:
        """Return the values of its parameters without any knowledge of its callers; `owner`: its instance."""
        arguments = self.node.args
        slots = [*self.slots, *arguments.kwonlyargs, arguments.vararg]
        names: Scope = {slot.arg: single(Anything(slot.arg)) for slot in slots if slot}
        if arguments.kwarg:
            names[arguments.kwarg.arg] = single(Keywords(open=True))
        if owner is not None and self.slots and "staticmethod" not in self.decorators:
            names[self.slots[0].arg] = single(Instance(owner.blueprint))
            names["super()"] = single(Instance(owner.blueprint, parent=True))
        return names

    def bears_on_te(self, mentions: Mentions) -> bool:
        """Return whether it is short and uses a name that bears on TE."""
        if self._bears_on_te is None:
            self._bears_on_te = False  # during the evaluation: recursion adds nothing
            parts = list(ast.walk(self.node))
            is_short = sum(isinstance(part, ast.stmt) for part in parts) <= LONGEST_RUN
            if is_short and not any(isinstance(part, (ast.Yield, ast.YieldFrom, ast.Await)) for part in parts):
                names = sorted({part.id for part in parts if isinstance(part, ast.Name)})
                imports = any(isinstance(part, (ast.Import, ast.ImportFrom)) for part in parts)
                used = [pair for name in names for pair in self.home.inside.find(name) or ()]
                self._bears_on_te = imports or any(
                    value.bears_on_te(mentions) or (guard is not True and names_te(guard)) for guard, value in used
                )
        return self._bears_on_te


@dataclass(eq=False)
class ClassDefinition(Value):
    """A class of the consuming package.

    `look_up` finds the names of other modules. `definitions` are the functions of its body, in the order in which they
    are read; `methods` those that the class has at the end of its body, by name; `added_fields` those that a dataclass
    adds, None for another class; `assigned` the other names of its body. `attributes` are those that only its
    constructor sets, with their values; filled when the constructor is read.
    """

    name: str
    bases: tuple[Choice, ...]
    look_up: LookUp
    definitions: list[FunctionDefinition] = field(default_factory=list)
    methods: Scope = field(default_factory=dict)
    added_fields: frozenset[str] | None = None
    assigned: frozenset[str] = frozenset()
    attributes: Scope = field(default_factory=dict)

    @cached_property
    def set_names(self) -> set[str]:
        """Return the attributes that its methods set."""
        return set_attributes(method.node for method in self.definitions)

    @property
    def is_config(self) -> bool:
        """Return whether it is a configuration: functions take its instances as `config`."""
        return self.name.endswith("Config")

    def parents(self) -> Iterator[tuple[Guard, Value]]:
        """Yield its bases."""
        for base in self.bases:
            yield from settled(base, self.look_up)

    def method(self, name: str) -> Choice:
        """Return a method, looked up in the order of the bases; () if no class has it."""
        return self.methods.get(name) or (UNKNOWN if name in self.assigned else self.inherited(name))

    def inherited(self, name: str) -> Choice:
        """Return a method of the first base that has it, () if none has; one outside the package may have any."""
        for base in self.bases:
            classes = settled(base, self.look_up)
            alternatives = [pair for guard, value in classes for pair in guarded(guard, value.method(name))]
            if alternatives:
                return gather(alternatives)
        return ()

    def provided_bases(self) -> list[tuple[Guard, Reference]]:
        """Return the provider's classes that it extends, itself or through others of the package."""
        provided: list[tuple[Guard, Reference]] = []
        for guard, value in self.parents():
            if isinstance(value, Reference):
                provided.append((guard, value))
            elif isinstance(value, ClassDefinition) and value is not self:
                provided += [(all_of(guard, condition), base) for condition, base in value.provided_bases()]
        return list(dict.fromkeys(provided))

    def fields(self) -> frozenset[str] | None:
        """Return the fields that a dataclass and its bases in the package add; None where none is a dataclass."""
        inherited = [value.fields() for _, value in self.parents() if isinstance(value, ClassDefinition)]
        added = [fields for fields in [self.added_fields, *inherited] if fields is not None]
        return frozenset().union(*added) if added else None

    def constructed(self) -> list[ClassDefinition]:
        """Return the classes whose constructors have run for an instance: its own, and the bases it calls."""
        constructors = [method.node for method in self.definitions if method.node.name == "__init__"]
        parts = (part for node in constructors for part in ast.walk(node))
        calls_on = any(isinstance(part, ast.Attribute) and part.attr == "__init__" for part in parts)
        certain = [value for guard, value in self.parents() if guard is True] if calls_on or not constructors else []
        bases = [base for base in certain if isinstance(base, ClassDefinition)]
        return [self, *(above for base in bases for above in base.constructed())]


@dataclass(frozen=True)
class Instance(OfTheRun):
    """`self` (or `cls`) in a method of a class; `parent`: super() in that method."""

    blueprint: ClassDefinition
    parent: bool = False

    @property
    def name(self) -> str:
        """Return the class that Python names in an AttributeError."""
        return "super" if self.parent else self.blueprint.name

    def held(self, name: str) -> Choice:
        """Return the values of an attribute: known if only a constructor sets it, a base's too; else just named."""
        for blueprint in self.blueprint.constructed():
            if name in blueprint.attributes:
                return blueprint.attributes[name]
            if name in blueprint.set_names:
                break
        owner = "config" if self.blueprint.is_config else "self"
        return single(Anything(name if name.endswith("config") else f"{owner}.{name}"))

    def read(self, name: str, *, called: bool) -> Choice:
        """Return the values of an attribute or, where it is `called`, of a method."""
        if self.parent:
            return self.blueprint.inherited(name) or UNKNOWN
        if called and name not in self.blueprint.attributes:
            return self.blueprint.method(name) or UNKNOWN
        return self.held(name)


def added_fields(node: ast.ClassDef) -> frozenset[str] | None:
    """Return the fields that a dataclass adds to the constructor, None for another class."""
    if not any(dotted(called(decorator)).rpartition(".")[2] == "dataclass" for decorator in node.decorator_list):
        return None
    targets = (part.target for part in node.body if isinstance(part, ast.AnnAssign))
    return frozenset(target.id for target in targets if isinstance(target, ast.Name))


def bound_names(statements: Sequence[ast.stmt]) -> list[str]:
    """Return the names that statements bind."""
    names: dict[str, None] = {}
    for node in walk_all(statements):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names[node.id] = None
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names.update({alias.asname or alias.name.partition(".")[0]: None for alias in node.names})
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names[node.name] = None
    return list(names)


def walk_all(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield the nodes and all their parts."""
    return (part for node in nodes for part in ast.walk(node))


def set_attributes(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names of the attributes that are assigned in the nodes."""
    attributes = (part for part in walk_all(nodes) if isinstance(part, ast.Attribute))
    return {attribute.attr for attribute in attributes if isinstance(attribute.ctx, ast.Store)}
