"""An outcome survives the way between processes."""

from __future__ import annotations

import json

import pytest

from matrix.ground.catalog.codec import decode, decode_json, encode
from matrix.ground.verdicts.outcome import Frame, Outcome, OutcomeKind, Raised, RankEnd
from matrix.ground.verdicts.planned import Kind, Lack

CHAIN = (Raised("KeyError", "'loss'", (Frame("a.py", 1, "f"),)), Raised("RuntimeError", "no loss"))


def test_outcome_with_every_field_survives_the_round_trip() -> None:
    rank = RankEnd(0, -11, CHAIN, returned=True, stopped=True, seconds=1.5, value={"x": [1, None]}, log="l", stacks="s")
    outcome = Outcome(
        OutcomeKind.SIGNALED,
        "rank 0 died",
        0,
        "SIGSEGV",
        -11,
        CHAIN,
        "end of the log",
        2,
        (rank, RankEnd(1, None)),
        leftovers=1,
        attempts=("hung",),
        lacks=(Lack(Kind.CLONE, "needs a clone", "megatron-lm"),),
    )
    assert decode_json(Outcome, json.dumps(encode(outcome))) == outcome


def test_kind_alone_is_an_outcome() -> None:
    assert decode(Outcome, {"kind": "passed"}) == Outcome(OutcomeKind.PASSED)


@pytest.mark.parametrize(
    ("message", "compared"),
    [
        (
            "module 'numpy' has no attribute 'product'. Did you mean: 'prod'?",
            "module 'numpy' has no attribute 'product'",
        ),
        ("name 'io' is not defined. Did you forget to import 'io'?", "name 'io' is not defined"),
        ("name 'io' is not defined. Did you mean: 'id'? Or did you forget to import 'io'?", "name 'io' is not defined"),
        (
            "f() got an unexpected keyword argument 'xx'. Did you mean 'x'?",
            "f() got an unexpected keyword argument 'xx'",
        ),
        ("'A' object has no attribute 'v'. Did you mean '.b.v' instead of '.v'?", "'A' object has no attribute 'v'"),
        ("Caught it.\nKeyError: a. Did you mean: 'b'?\n  more", "Caught it.\nKeyError: a\n  more"),
        ("no model 'a'. Did you mean: 'b'? Then rename it.", "no model 'a'. Did you mean: 'b'? Then rename it."),
        ("no model. Did you mean it?", "no model. Did you mean it?"),
        ("", ""),
    ],
)
def test_suggestions_of_python_are_not_compared(message: str, compared: str) -> None:
    raised = Raised("AttributeError", message)
    assert (raised.compared, raised.message) == (compared, message)
