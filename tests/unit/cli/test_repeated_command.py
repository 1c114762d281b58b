"""The options of a run, and the command lines that repeat or resume it."""

from __future__ import annotations

import argparse
from itertools import chain
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from matrix.cli.case_options import actions, command_words
from matrix.cli.main import parser
from matrix.ground.errors import MatrixError

RUN_OPTIONS = [action for action in actions("run") if action.dest != "help"]
PLAN_OPTIONS = {action.dest for action in actions("plan")}
NUMBERS = {int: st.integers(1, 99), float: st.floats(0.1, 1e6)}
TEXTS = st.text(st.characters(exclude_categories=["C", "Zl", "Zp"]), min_size=1)


def values(action: argparse.Action) -> st.SearchStrategy[list[str]]:
    """Return the ways to give one option: its words on the command line."""
    name = action.option_strings[-1]
    if action.nargs == 0:
        return st.just([name])
    texts = st.sampled_from(list(action.choices)) if action.choices else NUMBERS.get(action.type, TEXTS).map(str)  # type: ignore[call-overload]
    if not name.startswith("--"):
        return texts.map(lambda text: [name, text])
    times = 3 if isinstance(action, argparse._AppendAction) else 1
    lists = st.lists(texts.map(lambda text: f"{name}={text}"), min_size=1, max_size=times)
    return lists | st.just([name]) if action.nargs == "?" else lists


LINES = st.lists(st.sampled_from(RUN_OPTIONS), unique=True).flatmap(lambda chosen: st.tuples(*map(values, chosen)))


RUN = parser(["run"])


def parsed(words: list[str]) -> dict[str, Any]:
    """Return what the command line parses words as."""
    try:
        return vars(RUN.parse_args(words))
    except MatrixError:  # options that exclude each other
        assume(False)
        raise


@pytest.mark.parametrize("action", RUN_OPTIONS, ids=lambda action: action.dest)
@settings(max_examples=5)  # of one option; the next test has any of them
@given(st.data())
def test_each_option_is_in_the_command_line(action: argparse.Action, data: st.DataObject) -> None:
    request = parsed(["run", *data.draw(values(action))])
    assert parsed(command_words(argparse.Namespace(**request))) == request


@given(LINES)
def test_command_line_makes_the_same_request(options: tuple[list[str], ...]) -> None:
    request = parsed(["run", *chain(*options)])
    assert parsed(command_words(argparse.Namespace(**request))) == request


@given(LINES)
def test_resume_line_keeps_all_but_the_plan(options: tuple[list[str], ...]) -> None:
    request = parsed(["run", *chain(*options)])
    resumed = parsed(command_words(argparse.Namespace(**request), "RUN"))
    usual = {name: value for name, value in parsed(["run"]).items() if name in PLAN_OPTIONS}
    assert resumed == {**request, **usual, "resume": "RUN"}


def test_output_folder_of_the_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable may have been set for one command only."""
    monkeypatch.setenv("MEGATRIX_OUT", "elsewhere")
    assert command_words(parser(["run"]).parse_args(["run"])) == ["run", "--out=elsewhere"]
