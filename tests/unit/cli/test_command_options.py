"""Options that several commands have."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from matrix.cli.usage import add_arguments, add_options, described, given
from matrix.ground.catalog.failure import Expectation, Level
from matrix.ground.catalog.reach import JobOption
from matrix.prove.store.paths import OUT

OPTIONS = (JobOption("world-size", "N"), JobOption("launcher", "NAME", "what starts the ranks"))


@pytest.fixture
def parser() -> argparse.ArgumentParser:
    return argparse.ArgumentParser(exit_on_error=False)


def test_out_comes_from_option_variable_or_default(
    parser: argparse.ArgumentParser, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_arguments(parser, {"out": "shared"})
    assert parser.parse_args([]).out == Path(OUT)
    monkeypatch.setenv("MEGATRIX_OUT", "/of/the/variable")
    further = argparse.ArgumentParser()
    add_arguments(further, {"out": "shared"})
    assert further.parse_args([]).out == Path("/of/the/variable")
    assert further.parse_args(["--out", "/of/the/option"]).out == Path("/of/the/option")


def test_findings_have_one_form(parser: argparse.ArgumentParser) -> None:
    add_arguments(parser, described("contract").options)
    assert parser.parse_args(["--format", "markdown"]).format == "markdown"
    assert parser.parse_args(["--json"]).json
    with pytest.raises((argparse.ArgumentError, SystemExit)):
        parser.parse_args(["--json", "--format", "sarif"])


def test_choices_are_those_of_the_enum(parser: argparse.ArgumentParser) -> None:
    add_arguments(parser, {"cases": "shared"})
    choices = {action.dest: action.choices for action in parser._actions if action.choices}
    assert choices == {"level": [level.value for level in Level], "expect": [one.value for one in Expectation]}


def test_job_options_keep_their_text(parser: argparse.ArgumentParser) -> None:
    """JobOption reads and checks it."""
    add_options(parser, OPTIONS)
    assert given(parser.parse_args(["--world-size", "eight"]), OPTIONS) == {"world-size": "eight", "launcher": None}
    assert "--launcher NAME" in parser.format_help()
