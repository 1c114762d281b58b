"""Findings as SARIF and as annotations of GitHub Actions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from matrix.contract import ci_annotations
from matrix.contract.finding import Finding, FindingKind
from matrix.contract.usage import Site

VERSIONS = ["0.15.0", "0.16.0", "0.16.1", "0.17.0"]


def finding(version: str, kind: FindingKind = FindingKind.DEFINITE, line: int = 3) -> Finding:
    return Finding(
        "fork", version, "megatron.core.f", Site("a, b.py", line, "run"), "x", kind, "f() got 100%", "(a)", "TypeError",
        packages=("fork", "megatron-core"),
    )  # fmt: skip


def test_sarif_has_one_result_for_each_break() -> None:
    found = [finding(version) for version in ("0.16.0", "0.16.1")] + [finding("0.17.0", FindingKind.OVERRIDE, 9)]

    run = json.loads(ci_annotations.sarif(found, VERSIONS, "sub/"))["runs"][0]

    first, second = run["results"]
    assert first["level"] == second["level"] == "error"
    assert first["ruleId"] == "definite"
    assert first["locations"][0]["physicalLocation"] == {
        "artifactLocation": {"uri": "sub/a, b.py"}, "region": {"startLine": 3}
    }  # fmt: skip
    assert first["message"]["text"] == (
        "definite with megatron-core 0.16.0 .. 0.16.1: "
        "megatron.core.f: TypeError: f() got 100% (where x); signature (a)"
    )
    assert {first["ruleId"], second["ruleId"]} <= {rule["id"] for rule in run["tool"]["driver"]["rules"]}


def test_github_command_is_escaped() -> None:
    assert ci_annotations.github([finding("0.17.0")], VERSIONS) == (
        "::error file=a%2C b.py,line=3,title=definite with megatron-core 0.17.0::"
        "megatron.core.f: TypeError: f() got 100%25 (where x); signature (a)"
    )


@pytest.mark.parametrize(
    ("kind", "level"), [(FindingKind.POSSIBLE, "::warning "), (FindingKind.SILENTLY_OFF, "::notice ")]
)
def test_level_follows_the_kind(kind: FindingKind, level: str) -> None:
    assert ci_annotations.github([finding("0.17.0", kind)], VERSIONS).startswith(level)


def test_paths_start_at_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fork").mkdir()
    monkeypatch.chdir(tmp_path)

    assert ci_annotations.prefix("./fork") == "fork/"
    assert ci_annotations.prefix("./fork@HEAD") == "fork/"
    assert ci_annotations.prefix(".") == ci_annotations.prefix("/") == ci_annotations.prefix("missing.whl") == ""
