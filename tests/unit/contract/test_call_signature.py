"""The text and the record of a signature."""

import ast

import pytest

from matrix.contract.call_signature import parse_signature, signature_text


def test_text_is_read_as_parameters() -> None:
    signature = parse_signature("(a,/,b=1,*args,c,d=None,**kw)")
    assert (signature.slots, signature.unnamed, signature.keywords) == (("a", "b"), 1, ("c", "d"))
    assert (sorted(signature.required), signature.args, signature.kwargs) == (["a", "c"], "args", "kw")
    assert signature.accepted == {"b", "c", "d"}
    assert [signature.takes(name) for name in ("a", "d", "args", "kw", "e")] == [True, True, True, True, False]


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
