"""Names, functions and classes of a consuming package."""

from __future__ import annotations

import ast

import pytest

from matrix.read.api.scope import ClassDefinition, Instance, Names, bound_names
from matrix.read.api.value import UNKNOWN, Anything, Choice, InPackage, Literal, Reference, single

LINEAR = Reference("transformer_engine.pytorch:Linear")


def nowhere(module: str, name: str) -> Choice:
    raise AssertionError((module, name))


def defined(name: str, *bases: Choice, fields: frozenset[str] | None = None) -> ClassDefinition:
    return ClassDefinition(name, bases, nowhere, added_fields=fields)


def test_class_is_no_scope_of_its_methods() -> None:
    module = Names({"x": single(Literal(1))})
    body = Names({"x": single(Literal(2))}, module, of_class=True)
    assert body.find("x") == single(Literal(2))
    assert Names({}, body.inside).find("x") == single(Literal(1))
    assert Names({}, Names({}, module).inside).find("x") == single(Literal(1))
    assert module.find("y") is None


def test_function_first_finds_the_initial_constant() -> None:
    """Other functions, that may run later, find an unknown value."""
    module = Names({"_version": single(Literal(None)), "other": single(Literal(1))})
    module.reassign("_version")
    scope = Names({}, module)
    [node] = ast.parse("def get():\n    global _version, other\n").body
    assert isinstance(node, ast.FunctionDef)
    assert scope.find("_version") == single(Anything("_version"))
    scope.declare_globals(node)
    assert scope.own == {"_version": single(Literal(None))}


class TestClasses:
    def test_method_is_of_the_first_base_with_it(self) -> None:
        empty, wide = defined("Empty"), defined("Wide")
        wide.methods["run"] = single(Literal(1))
        mixed = defined("Mixed", single(empty), single(wide), single(LINEAR))
        assert mixed.method("run") == single(Literal(1))
        assert mixed.method("forward") == single(LINEAR.attribute("forward"))
        assert empty.method("run") == ()
        assert defined("Module", single(Anything("torch.nn.Module"))).method("run") == UNKNOWN

    def test_base_of_another_module_is_looked_up(self) -> None:
        blueprint = ClassDefinition("MLP", (single(InPackage("a", "Base")),), lambda module, name: single(LINEAR))
        assert blueprint.provided_bases() == [(True, LINEAR)]
        assert defined("Deep", single(blueprint)).provided_bases() == [(True, LINEAR)]

    @pytest.mark.parametrize(
        ("own", "inherited", "expected"),
        [
            (None, None, None),
            (None, frozenset("a"), frozenset("a")),
            (frozenset("b"), None, frozenset("b")),
            (frozenset("b"), frozenset("a"), frozenset("ab")),
            (frozenset(), None, frozenset()),
        ],
    )
    def test_fields_are_those_of_all_dataclasses(
        self, own: frozenset[str] | None, inherited: frozenset[str] | None, expected: frozenset[str] | None
    ) -> None:
        base = defined("Base", fields=inherited)
        assert defined("Config", single(base), fields=own).fields() == expected

    def test_attribute_of_an_instance_is_known_or_named(self) -> None:
        blueprint = defined("MLP")
        blueprint.attributes["wide"] = single(Literal(True))
        blueprint.methods["run"] = single(LINEAR)
        instance = Instance(blueprint)
        assert instance.read("wide", called=True) == single(Literal(True))
        assert instance.read("run", called=True) == single(LINEAR)
        assert instance.read("run", called=False) == single(Anything("self.run"))
        assert Instance(blueprint, parent=True).read("run", called=True) == UNKNOWN
        assert Instance(defined("RunConfig")).held("fp8") == single(Anything("config.fp8"))
        assert instance.held("config") == single(Anything("config"))


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("x = y", ["x"]),
        ("a, (b, *c) = 1", ["a", "b", "c"]),
        ("import a.b, c as d", ["a", "d"]),
        ("from a import b as c, d", ["c", "d"]),
        ("def f(): pass", ["f"]),
        ("class K: pass", ["K"]),
        ("for i in x: pass", ["i"]),
        ("print(x)", []),
    ],
)
def test_bound_names_are_those_of_every_statement(source: str, names: list[str]) -> None:
    assert bound_names(ast.parse(source).body) == names
