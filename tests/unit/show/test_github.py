"""Workflow commands of GitHub Actions."""

from __future__ import annotations

import pytest

from matrix.show.findings import Findings, Severity, github
from tests.unit.show.finding_samples import finding


@pytest.mark.parametrize(
    ("severity", "command"), [(Severity.ERROR, "error"), (Severity.WARNING, "warning"), (Severity.NOTE, "notice")]
)
def test_command_follows_the_severity(severity: Severity, command: str) -> None:
    assert github(Findings("x", (finding(severity),))) == (
        f"::{command} file=a%2C b.py,line=3,title=dud%3A It breaks::got 100%25"
    )


def test_finding_without_place_has_only_a_title() -> None:
    assert github(Findings("x", (finding(place=None),))).startswith("::error title=")


def test_each_sentence_of_the_summary_is_a_notice() -> None:
    lines = github(Findings("megatrix check", (), ("one: 1", "two"))).splitlines()
    assert lines == ["::notice title=megatrix check::one: 1", "::notice title=megatrix check::two"]
