"""`megatrix catalog verify`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from matrix.cli import verify
from matrix.cli.main import main
from matrix.ground.catalog import loading
from matrix.ground.catalog.folders import SITE
from matrix.ground.catalog.model import Catalog
from matrix.ground.verdicts.record import Verdict
from matrix.prove.store.history import History
from matrix.prove.store.paths import Paths
from tests.unit.catalogs import clause, planned
from tests.unit.cli.small_night import ENTRY, KNOWN, STRANGE
from tests.unit.engines import FakeEngine
from tests.unit.show.samples import record

TOML = """id = "save-breaks"
[[affected]]
reason = "run with ..."
[[works]]
reason = "run with ..."
"""
CODE = "def run_{}(rank):\n    return None\n"


@pytest.fixture
def folder(tmp_path: Path, small_cli: None, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the small night's failure, with the functions of its cases."""
    path = tmp_path / "save_breaks"
    path.mkdir()
    (path / "failure.toml").write_text(TOML)
    (path / "reproduction.py").write_text("\n\n".join(CODE.format(name) for name in ("tp2", "pp2")))
    known: Catalog = replace(KNOWN, failures=(replace(ENTRY, folder=path),))
    monkeypatch.setattr(loading, "load", lambda: known)
    monkeypatch.setattr(verify, "TOOLS", ())
    engine.known = known
    return path


def test_entry_is_verified_in_one_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["catalog", "verify", "save-breaks"]) == 0
    printed = capsys.readouterr().out
    assert "swapped: expectations swapped; red in both directions" in printed
    assert printed.endswith("no problems; no claims without a record or a source\n")
    assert 'reason = "run with 0.7.0, 0.8.0 on torch-2.4.0, torch-2.5.1"' in (folder / "failure.toml").read_text()
    assert list((folder / "examples" / "shows").glob("*.json"))


def test_verifying_writes_no_pages(folder: Path) -> None:
    """The map of every stack takes longer than the cases of one entry; the run is in the history all the same."""
    out = folder.parent / "out"
    assert main(["catalog", "verify", "save-breaks", "--out", str(out)]) == 0
    assert list(out.rglob("*.html")) == []
    with History(Paths(out).history) as history:
        assert history.records_of("save-breaks")


def test_claim_of_an_earlier_run_is_supported(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run of `verify` itself has no case with 0.6.0."""
    (folder / "failure.toml").write_text('id = "save-breaks"\n')
    entry = replace(ENTRY, folder=folder, affected=(clause(mcore="<0.9", torch=">=2.4", reason="run with 0.6.0"),))
    claiming = replace(KNOWN, failures=(entry,))
    monkeypatch.setattr(loading, "load", lambda: claiming)
    words = ["catalog", "verify", "save-breaks", "--out", str(folder.parent / "out")]
    assert main(words) == 0
    assert "no record of a run with 0.6.0" in capsys.readouterr().out
    past = replace(record(), planned=planned(claiming, "torch-2.4.0", core="0.6.0"), verdict=Verdict.REPRODUCED)
    with History(Paths(folder.parent / "out").history) as history:
        history.add("earlier", [past])
    assert main(words) == 0
    assert capsys.readouterr().out.endswith("no problems; no claims without a record or a source\n")


def test_red_case_is_a_problem(folder: Path, engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    engine.ends = lambda item: STRANGE
    assert main(["catalog", "verify", "save-breaks"]) == 1
    printed = capsys.readouterr().out
    assert "unexplained\n  fix: megatrix run --case" in printed
    assert "have another verdict" in printed


def test_entry_that_can_not_run_starts_nothing(
    folder: Path, engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "reproduction.py").write_text(CODE.format("tp2"))
    assert main(["catalog", "verify", "save-breaks"]) == 1
    assert "reproduction.py has no function run_pp2" in capsys.readouterr().out
    assert engine.ran == []


def test_draft_is_not_run(
    folder: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "failure.toml").write_text('title = "TODO: the symptom"\n')
    monkeypatch.setenv(SITE, str(folder.parent))
    assert main(["catalog", "verify", "save-breaks"]) == 1
    assert "failure.toml:1" in capsys.readouterr().out
    assert engine.ran == []


def test_python_of_the_folder_is_linted(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(verify, "TOOLS", (("json.tool",), ("no_such_tool",)))
    problems = [str(problem) for problem in verify.linted(folder)]
    assert problems[0].startswith("json.tool: ")
    assert problems[1].startswith("no_such_tool: it is not installed")


@pytest.mark.parametrize(("path", "expected"), [("/x/tool", ["/x/tool", "check"]), (None, [])])
def test_tool_is_of_this_python_or_the_path(
    path: str | None, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: path)
    assert verify.tool_command("pytest", "--version")[0] == sys.executable
    assert verify.tool_command("no_such_tool", "check") == expected
