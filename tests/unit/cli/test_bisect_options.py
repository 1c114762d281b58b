"""The request that the options of bisect make."""

from __future__ import annotations

import argparse
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from matrix.cli.bisect_options import OF_A_COMMAND, OPTIONS, add_options, arguments_of, share
from matrix.prove.bisection.bisect_arguments import BisectArguments
from matrix.prove.bisection.question import BisectionQuestion

NOT_GIVEN: dict[str, Any] = {field.name: "" for field in fields(BisectionQuestion)}
DEFAULTS = BisectionQuestion(**{**NOT_GIVEN, "failure": "save-breaks"})


def parsed(*arguments: str) -> BisectArguments:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_options(parser)
    options = parser.parse_args(["save-breaks", "--out", "out", *arguments])
    return arguments_of(argparse.Namespace(**vars(options), own=()))


def test_options_not_given_have_their_defaults() -> None:
    assert parsed() == BisectArguments(DEFAULTS, Path("out"))


@pytest.mark.parametrize(
    ("arguments", "changes"),
    [
        (["--axis", "mcore", "--good", "0.9.0", "--bad", "0.8.0"], {"axis": "mcore", "good": "0.9.0", "bad": "0.8.0"}),
        (["--repo", "clone", "--case", "pp2", "--level", "gpu"], {"repo": "clone", "case": "pp2", "level": "gpu"}),
        (["--base", "torch-2.4.0", "--torch", "2.4.0"], {"base": "torch-2.4.0", "torch": "2.4.0"}),
        (["--mcore", "a", "--te", "b", "--writer", "c"], {"mcore": "a", "te": "b", "writer": "c"}),
        (["--driver", "470", "--compile"], {"driver": "470", "compile": True}),
    ],
)
def test_options_of_the_points_are_the_question(arguments: list[str], changes: dict[str, Any]) -> None:
    assert parsed(*arguments).question == replace(DEFAULTS, **changes)


@pytest.mark.parametrize(
    ("arguments", "changes"),
    [
        (["--at-once", "3", "--checks", "2", "--no-cache"], {"at_once": 3, "checks": 2, "fresh": True}),
        (["--shows", "0.5", "--confidence", "0.9"], {"shows": 0.5, "confidence": 0.9}),
        (["--metric", "x", "--worse-than", "5%", "--repeats", "3"], {"metric": "x", "worse_than": 0.05, "repeats": 3}),
        (["--signature", "s.toml", "--deadline", "60"], {"signature": "s.toml", "deadline": 60}),
    ],
)
def test_other_options_decide_the_search(arguments: list[str], changes: dict[str, Any]) -> None:
    assert parsed(*arguments) == replace(BisectArguments(DEFAULTS, Path("out")), **changes)


def test_every_option_is_in_the_request() -> None:
    """An option that no field has is one that bisect ignores."""
    names = {name.removeprefix("--").replace("-", "_") for name in (*OPTIONS, *OF_A_COMMAND)}
    known = {field.name for field in (*fields(BisectionQuestion), *fields(BisectArguments))}
    assert names <= known


@pytest.mark.parametrize(("text", "value"), [("5%", 0.05), ("0.05", 0.05), ("120%", 1.2), ("9.9", 9.9)])
def test_a_share_is_a_number_or_percent(text: str, value: float) -> None:
    assert share(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["0", "-1%", "10", "1000%", "nan", "five"])
def test_a_share_is_above_zero_and_below_ten(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        share(text)
