"""A reason keeps its kind and its text from the plan to the page."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.ground.catalog.codec import MalformedError, decode, encode
from matrix.ground.verdicts.planned import Reason, ReasonKind

KINDS = st.sampled_from(list(ReasonKind))


@given(KINDS, st.text())
def test_json_keeps_kind_and_text(kind: ReasonKind, text: str) -> None:
    reason = Reason(kind, text)
    assert decode(Reason, json.loads(json.dumps(encode(reason)))) == reason
    assert encode(reason) == {"kind": kind.value, "text": text}


@pytest.mark.parametrize("strange", ["boundary: x", {}, {"kind": "boundary"}, {"kind": "moon", "text": ""}, None, 1])
def test_from_json_refuses_anything_else(strange: object) -> None:
    with pytest.raises(MalformedError):
        decode(Reason, strange)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (ReasonKind.STACK, "stack of x"),
        (ReasonKind.BOUNDARY, "boundary: x"),
        (ReasonKind.PAIRWISE, "pairwise: x"),
        (ReasonKind.PICKED, "picked: x"),
        (ReasonKind.SOURCE, "source: x"),
    ],
)
def test_str_joins_kind_and_text(kind: ReasonKind, expected: str) -> None:
    assert str(Reason(kind, "x")) == expected
