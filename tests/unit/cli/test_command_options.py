"""Options that several commands have."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from matrix.cli.usage import FINDING_FORMATS, add_findings, add_json, add_options, add_out, given
from matrix.ground.catalog.reach import JobOption
from matrix.prove.store.paths import OUT

OPTIONS = (JobOption("world-size", "N"), JobOption("launcher", "NAME", "what starts the ranks"))


@pytest.fixture
def parser() -> argparse.ArgumentParser:
    return argparse.ArgumentParser(exit_on_error=False)


def test_out_comes_from_option_variable_or_default(
    parser: argparse.ArgumentParser, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_out(parser)
    assert parser.parse_args([]).out == Path(OUT)
    monkeypatch.setenv("MEGATRIX_OUT", "/of/the/variable")
    further = argparse.ArgumentParser()
    add_out(further)
    assert further.parse_args([]).out == Path("/of/the/variable")
    assert further.parse_args(["--out", "/of/the/option"]).out == Path("/of/the/option")


def test_findings_have_one_form(parser: argparse.ArgumentParser) -> None:
    add_findings(parser, "check")
    assert [parser.parse_args(["--format", name]).format for name in FINDING_FORMATS] == list(FINDING_FORMATS)
    assert parser.parse_args(["--json"]).json
    with pytest.raises((argparse.ArgumentError, SystemExit)):
        parser.parse_args(["--json", "--format", "sarif"])


def test_help_of_json_names_each_schema(parser: argparse.ArgumentParser) -> None:
    add_json(parser, "plan", "plan-stats")
    assert "print one JSON object (docs/schema/plan.json, plan-stats.json)" in " ".join(parser.format_help().split())


def test_job_options_keep_their_text(parser: argparse.ArgumentParser) -> None:
    """JobOption reads and checks it."""
    add_options(parser, OPTIONS)
    assert given(parser.parse_args(["--world-size", "eight"]), OPTIONS) == {"world-size": "eight", "launcher": None}
    assert "--launcher NAME" in parser.format_help()
