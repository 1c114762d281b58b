"""The findings of `megatrix contract`, one for each break."""

from __future__ import annotations

from dataclasses import replace

import pytest

from matrix.ground.catalog.stack import Place
from matrix.read.api.finding import Finding, FindingKind
from matrix.read.api.provider import Site
from matrix.show.findings import Severity, of_contract

VERSIONS = ["0.15.0", "0.16.0", "0.16.1", "0.17.0"]


def finding(version: str, kind: FindingKind = FindingKind.DEFINITE, line: int = 3) -> Finding:
    return Finding(
        "fork", version, "megatron.core.f", Site("a.py", line, "run"), "x", kind, "f() got 1", "(a)", "TypeError",
        packages=("fork", "megatron-core"),
    )  # fmt: skip


def test_releases_with_one_break_are_one_finding() -> None:
    breaks = [finding("0.17.0", FindingKind.OVERRIDE, 9), *(finding(version) for version in ("0.16.0", "0.16.1"))]

    first, second = of_contract(breaks, VERSIONS, "sub/").findings

    assert (first.topic.id, second.topic.id) == ("definite", "override")
    assert (first.place, second.place) == (Place("sub/a.py", 3), Place("sub/a.py", 9))
    assert first.headline == "definite with megatron-core 0.16.0 .. 0.16.1"
    assert first.message == (
        "megatron.core.f with megatron-core 0.16.0 .. 0.16.1: TypeError: f() got 1 (where x); signature (a)"
    )


def test_breaks_of_one_line_stay_apart() -> None:
    breaks = [finding("0.17.0"), replace(finding("0.17.0"), message="f() got 2")]
    assert len(of_contract(breaks, VERSIONS).findings) == 2


@pytest.mark.parametrize(
    ("kind", "severity"),
    [
        (FindingKind.DEFINITE, Severity.ERROR),
        (FindingKind.MISBOUND, Severity.ERROR),
        (FindingKind.OVERRIDE, Severity.WARNING),
        (FindingKind.POSSIBLE, Severity.WARNING),
        (FindingKind.IGNORED, Severity.WARNING),
        (FindingKind.SILENTLY_OFF, Severity.NOTE),
    ],
)
def test_severity_follows_the_kind(kind: FindingKind, severity: Severity) -> None:
    assert of_contract([finding("0.17.0", kind)], VERSIONS).findings[0].severity is severity
