"""Read the bindings in a body of a consuming package: assigned names, collected keywords, imports."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Protocol

from matrix.contract.definition import absolute, dotted, function_entry
from matrix.contract.flow import Flow
from matrix.contract.guard import Config, Guard, Loads, all_of
from matrix.contract.provider import Provider
from matrix.contract.reach import PendingUse, Reaches
from matrix.contract.value import (
    UNKNOWN,
    Anything,
    BodyLocation,
    Choice,
    FunctionDefinition,
    InPackage,
    Instance,
    Keywords,
    Literal,
    Names,
    Outside,
    Reference,
    Value,
    gather,
    only,
    updated,
)


class Library(Protocol):
    """The part of the consuming package that its bodies use."""

    drafts: list[PendingUse]
    reaches: Reaches
    provider: Provider

    def is_module(self, module: str) -> bool:
        """Return whether the package has that module."""

    def look_up(self, module: str, name: str) -> Choice:
        """Return the values of a module's `name`."""

    def loads(self, module: str) -> Guard:
        """Return the guard under which importing a module succeeds."""

    def mentions(self, module: str) -> bool:
        """Return whether a module's source contains the name of the provider."""


class Bindings(Flow):
    """Reads assignments and imports."""

    def __init__(self, library: Library, place: BodyLocation, names: Names) -> None:
        super().__init__()
        self.library, self.place, self.names = library, place, names
        self.provider = library.provider
        self._bindings: dict[str, int] = {}
        self._unpacks: dict[ast.AST, int] = {}  # call -> number of names that its result is unpacked into

    def look_up(self, module: str, name: str) -> Choice:
        """Return the values of `name` in another module of the package."""
        return self.library.look_up(module, name)

    # ------------------------------------------------------------------ names

    def _do_assign(self, node: ast.Assign) -> None:
        target = node.targets[0]
        if isinstance(target, (ast.Tuple, ast.List)) and isinstance(node.value, ast.Call):
            starred = any(isinstance(element, ast.Starred) for element in target.elts)
            self._unpacks[node.value] = 0 if starred else len(target.elts)
        choice = self.value(node.value)
        for target in node.targets:
            self.bind(target, node.value, choice)

    def _do_annassign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.bind(node.target, node.value, self.value(node.value))

    def _do_augassign(self, node: ast.AugAssign) -> None:
        self.value(node.value)
        self.bind(node.target, None, UNKNOWN)

    def bind(self, target: ast.expr, value: ast.expr | None, choice: Choice) -> None:
        """Bind a target: a name, an attribute of self, a key of collected keywords, several of them."""
        if isinstance(target, ast.Name):
            self.names.own[target.id] = self._named(target.id, choice)
        elif isinstance(target, ast.Starred):
            self.bind(target.value, None, UNKNOWN)
        elif isinstance(target, (ast.Tuple, ast.List)):
            parts = value.elts if isinstance(value, (ast.Tuple, ast.List)) else []
            for place, element in enumerate(target.elts):
                part = parts[place] if len(parts) == len(target.elts) else None
                self.bind(element, part, self.value(part))
        elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
            owner = self.names.find(target.value.id)
            if owner and isinstance(owner[0][1], Instance):
                self.names.own[dotted(target)] = self._named(dotted(target), choice)
            else:
                self._patch(target.value, target.attr, target, choice)
        elif isinstance(target, ast.Attribute):
            self._patch(target.value, target.attr, target, choice)
        elif isinstance(target, ast.Subscript):
            key = target.slice
            self.value(key)
            name = key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else ""
            self._change(target.value, lambda kept: kept.put(name) if name else Keywords(kept.entries, open=True))

    def _patch(self, owner: ast.expr, name: str, node: ast.AST, choice: Choice) -> None:
        """Record an assignment to an attribute of something of the provider."""
        if not dotted(owner):
            return
        for guard, value in self.value(owner):
            for inner, new in choice if isinstance(value, Reference) else ():
                path = value.attribute(name).path if isinstance(value, Reference) else ""
                signature = function_entry(new.node) if isinstance(new, FunctionDefinition) else ""
                self.use("patch", path, node, all_of(guard, inner), bound="object", signature=signature)

    def _call_setattr(self, node: ast.Call) -> Choice:
        values, _ = self.arguments(node)
        for _, name in values[1] if len(values) > 2 else ():
            if isinstance(name, Literal) and isinstance(name.value, str):
                self._patch(node.args[0], name.value, node, values[2])
        return UNKNOWN

    def _named(self, name: str, choice: Choice) -> Choice:
        """Return `choice`, or for an unknown value one named after its variable; each rebinding adds a prime."""
        of_class = choice[0][1].of_class if len(choice) == 1 and isinstance(choice[0][1], Anything) else ""
        if choice != UNKNOWN and not of_class:
            return choice
        held = "." in name and not self.place.function.endswith("__init__")  # an attribute set before this call
        before = self._bindings.get(name, int(name in self.names.own or held))
        self._bindings[name] = before + 1
        return only(Anything(name + "'" * before, of_class=of_class))

    def _change(self, owner: ast.expr, change: Callable[[Keywords], Keywords]) -> bool:
        """Change a variable if it holds collected keywords; return whether it does."""
        choice = self.names.find(owner.id) if isinstance(owner, ast.Name) else None
        if not choice or not any(isinstance(value, Keywords) for _, value in choice):
            return False
        changed = [(guard, change(value) if isinstance(value, Keywords) else value) for guard, value in choice]
        self.names.own[dotted(owner)] = gather(changed)
        return True

    def _call(self, node: ast.Call) -> Choice:
        """Evaluate a call, which may change a dictionary of keywords: its own, or one passed to another function."""
        func = node.func
        if isinstance(func, ast.Attribute) and func.attr in ("update", "pop", "setdefault"):
            values, passed = self.arguments(node)
            first = node.args[0] if node.args else None
            name = first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""
            added = [value for choice in values for _, value in choice]

            def change(kept: Keywords) -> Keywords:
                if name:
                    return kept.drop(name) if func.attr == "pop" else kept.put(name)
                return updated(kept, added, passed.keywords, more=passed.open_keywords)

            if self._change(func.value, change):
                return UNKNOWN
        result = super()._call(node)
        if dotted(func) not in ("dict", "len", "list", "sorted"):
            for argument in node.args:
                self._change(argument, lambda kept: Keywords(kept.entries, open=True))
        return result

    # ---------------------------------------------------------------- imports

    def _do_import(self, node: ast.Import) -> None:
        for alias in node.names:
            value = self.import_module(alias.name, node)
            top = alias.name.partition(".")[0]
            if not alias.asname:
                value = Reference(f"{top}:") if isinstance(value, Reference) else value
                value = InPackage(top) if isinstance(value, InPackage) else value
                value = Outside(top) if isinstance(value, Outside) else value
            self.names.own[alias.asname or top] = only(value)

    def import_module(self, name: str, node: ast.AST) -> Value:
        """Import a module by name; record the use and the possible failure."""
        if self.library.is_module(name):
            self.may_fail("ImportError", self.library.loads(name))
            return InPackage(name)
        if self.provider.owns(name):
            self.use("import", f"{name}:", node, True)
            self.may_fail("ModuleNotFoundError", self.loaded(f"{name}:"))
            return Reference(f"{name}:")
        self.may_fail("ModuleNotFoundError", _installed(name))
        return Outside(name)

    def _do_importfrom(self, node: ast.ImportFrom) -> None:
        source = absolute("." * node.level + (node.module or ""), self.place.module, self.place.is_package)
        inside = self.library.is_module(source)
        if self.provider.owns(source) and not inside:
            for alias in node.names:
                path = f"{source}:" if alias.name == "*" else f"{source}:{alias.name}"
                self.use("import", path, node, True)
                if self.catcher("ModuleNotFoundError") != self.catcher("ImportError"):
                    self.may_fail("ModuleNotFoundError", self.loaded(f"{source}:"))
                self.may_fail("ImportError", self.loaded(path))
                self.names.own[alias.asname or alias.name] = only(self.provided(Reference(path)))
            return
        self.may_fail("ImportError", self.library.loads(source) if inside else _installed(source))
        for alias in node.names:
            name = f"{source}.{alias.name}"  # `from megatron import core`
            if self.provider.owns(name) and not self.provider.owns(source) and not self.library.is_module(name):
                self.names.own[alias.asname or alias.name] = only(self.import_module(name, node))
                continue
            value: Value = InPackage(source, alias.name) if inside else Outside(f"{source}.{alias.name}")
            self.names.own[alias.asname or alias.name] = only(value)

    def loaded(self, path: str) -> Guard:
        """Return the guard under which a path loads; importing the provider itself succeeds, since it is installed."""
        return True if path == f"{self.provider.top}:" else Loads(path)


def _installed(module: str) -> Guard:
    return Config(f"{module.partition('.')[0]} is installed")
