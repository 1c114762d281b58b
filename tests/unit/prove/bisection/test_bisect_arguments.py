"""The arguments of a bisection: how often one rank runs a command, and the signature of a log."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from matrix.ground.errors import MatrixError
from matrix.kit.command import Repeats
from matrix.prove.bisection.bisect_arguments import BATCH_S, BisectArguments, given_signatures
from matrix.prove.bisection.noise import LEAST
from matrix.prove.bisection.question import BisectionQuestion
from matrix.prove.bisection.user_command import ONCE

NOT_GIVEN: dict[str, Any] = {field.name: "" for field in fields(BisectionQuestion)}
QUESTION = BisectionQuestion(**{**NOT_GIVEN, "good": "1", "bad": "2", "own": ("python", "x.py")})
ARGUMENTS = BisectArguments(QUESTION, Path("out"))


@pytest.mark.parametrize(
    ("changes", "repeats"),
    [
        ({}, ONCE),
        ({"shows": 0.3}, Repeats(1, 15, BATCH_S)),
        ({"shows": 0.3, "deadline": 20}, Repeats(1, 15, 5.0)),
        ({"metric": "x", "worse_than": 0.1}, Repeats(1, LEAST, BATCH_S)),
        ({"metric": "x", "worse_than": 0.1, "repeats": 4}, Repeats(4, 4, BATCH_S)),
    ],
)
def test_short_commands_are_repeated_in_one_rank(changes: dict[str, Any], repeats: Repeats) -> None:
    own = replace(ARGUMENTS, **changes).command(Path("/tmp"))
    assert own
    assert own.repeats == repeats


def test_a_log_provides_the_signature(tmp_path: Path) -> None:
    """Its last traceback, whatever follows it, else its last line."""
    log = tmp_path / "bad.log"
    log.write_text(
        'step 7\n[rank0]: Traceback (most recent call last):\n[rank0]:   File "a.py", line 3, in save\n'
        "[rank0]: KeyError: 'optimizer state'\nE1123 torchrun: exit 1\n"
    )
    (signature,) = given_signatures(replace(ARGUMENTS, log=str(log)))
    assert (signature.exception, signature.message) == ("KeyError", "'optimizer state'")
    log.write_text("no space left\n\n")
    assert given_signatures(replace(ARGUMENTS, log=str(log)))[0].log == "(?m)^no space left"
    log.write_text("\n")
    with pytest.raises(MatrixError, match="shows no failure"):
        given_signatures(replace(ARGUMENTS, log=str(log)))
    assert given_signatures(ARGUMENTS) == ()


def test_one_of_number_signature_and_log_is_given() -> None:
    with pytest.raises(MatrixError, match="a number is compared, or a signature"):
        replace(ARGUMENTS, log="a", signature="b").command(Path("/tmp"))
