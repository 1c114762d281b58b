"""Binding agrees with Python: the same calls fail, with the same messages."""

import ast
import inspect
from collections.abc import Callable
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.contract.signature import parse_signature, signature_text

NAMES = ["a", "b", "c", "d", "e", "f"]
Drawn: TypeAlias = tuple[str, int, list[str]]  # a signature, positional arguments to it, keywords


@st.composite
def functions(draw: st.DrawFn) -> Drawn:
    """Return a random signature and a random call to it."""
    kinds = sorted(draw(st.lists(st.sampled_from(["positional", "either", "keyword"]), max_size=5)), key=
                   ["positional", "either", "keyword"].index)  # fmt: skip
    args, kwargs = draw(st.booleans()), draw(st.booleans())
    items, optional = [], False
    for place, kind in enumerate(kinds):
        if kind != "keyword":
            optional = optional or draw(st.booleans())
        default = optional if kind != "keyword" else draw(st.booleans())
        items.append((kind, NAMES[place] + ("=None" if default else "")))
    text = [item for kind, item in items if kind == "positional"]
    text += ["/"] if text else []
    text += [item for kind, item in items if kind == "either"]
    keyword_only = [item for kind, item in items if kind == "keyword"]
    text += ["*args"] if args else ["*"] if keyword_only else []
    text += keyword_only + (["**kwargs"] if kwargs else [])
    positional = draw(st.integers(0, 6))
    keywords = draw(st.lists(st.sampled_from([*NAMES, "stranger"]), unique=True, max_size=3))
    return f"({','.join(text)})", positional, keywords


@given(functions())
def test_binding_fails_with_pythons_message(drawn: Drawn) -> None:
    text, positional, keywords = drawn
    space: dict[str, Callable[..., None]] = {}
    exec(f"def called{text}: pass", space)  # the signature under test, as Python reads it
    signature = parse_signature(text)
    problems = signature.problems(positional, keywords, bound=False, starred=False, open_keywords=False)
    message = ""
    try:
        space["called"](*[0] * positional, **dict.fromkeys(keywords, 0))
    except TypeError as error:
        message = str(error)
    assert bool(message) == bool(problems)
    if "positional-only" not in message:  # Python's own message for a keyword to a positional-only parameter
        assert message == "".join(f"called() {problem.message}" for problem in problems[:1])


@given(functions())
def test_positions_land_as_in_python(drawn: Drawn) -> None:
    text, positional, _ = drawn
    space: dict[str, Callable[..., None]] = {}
    exec(f"def called{text}: pass", space)
    signature = inspect.signature(space["called"])
    try:
        bound = signature.bind_partial(*range(positional)).arguments
    except TypeError:
        return
    expected = {name: place for name, place in bound.items() if name != "args"}
    assert expected == {name: place for place, name in enumerate(parse_signature(text).slots[:positional])}


def test_bound_call_counts_self() -> None:
    problems = parse_signature("(self,x,y=1)").problems(3, (), bound=True, starred=False, open_keywords=False)
    assert [p.message for p in problems] == ["takes from 2 to 3 positional arguments but 4 were given"]


@pytest.mark.parametrize(
    ("starred", "open_keywords", "expected"),
    [
        (False, False, ["missing 3 required positional arguments: 'a', 'b', and 'c'"]),
        (True, False, []),
        (False, True, []),
    ],
)
def test_nothing_is_missing_if_arguments_may_follow(starred: bool, open_keywords: bool, expected: list[str]) -> None:
    signature = parse_signature("(a,b,c)")
    problems = signature.problems(0, (), bound=False, starred=starred, open_keywords=open_keywords)
    assert [p.message for p in problems] == expected


def test_signature_text_has_kinds_and_short_defaults() -> None:
    source = "def f(a, /, b: int = 1, c='LayerNorm', d=Format.HYBRID, *args, e, f=(1, 2), g=-1, **kw): pass"
    [definition] = ast.parse(source).body
    assert isinstance(definition, ast.FunctionDef)
    assert (
        signature_text(definition.args)
        == "(a,/,b=1,c='LayerNorm',d=...,*args,e,f=...,g=-1,**kw)"
    )  # fmt: skip


def test_other_text_is_no_signature() -> None:
    with pytest.raises(ValueError, match="not a signature"):
        parse_signature("enabled, num_layers")
