"""`megatrix catalog`: a new failure, its check, its examples."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from matrix.cli.main import main
from matrix.ground.catalog import loading
from matrix.ground.catalog.failure import Signature
from matrix.ground.catalog.folders import SITE
from matrix.ground.catalog.model import Topic
from matrix.ground.catalog.schema import Identifier
from matrix.ground.verdicts.record import Verdict
from matrix.prove.store.paths import Paths
from tests.unit.catalogs import catalog, clause, failure
from tests.unit.show.test_site import rendered


def test_new_failure_has_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(SITE, str(tmp_path))
    assert main(["catalog", "new", "my-failure"]) == 0
    assert {path.name for path in (tmp_path / "my_failure").iterdir()} == {"failure.toml", "reproduction.py"}
    assert capsys.readouterr().out.endswith("replace every TODO, then: megatrix catalog verify my-failure\n")
    assert main(["catalog", "new", "my-failure"]) == 2


def test_new_failure_goes_into_a_named_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The printed command reads it there, whether or not a setting names the folder."""
    monkeypatch.chdir(tmp_path)
    assert main(["catalog", "new", "my-failure", "--into", "own"]) == 0
    assert f"then: {SITE}={tmp_path}/own megatrix catalog verify my-failure" in capsys.readouterr().out
    monkeypatch.setenv(SITE, "own")
    assert main(["catalog", "new", "another-failure"]) == 0
    assert "then: megatrix catalog verify another-failure" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "own").iterdir()} == {"my_failure", "another_failure"}


def test_new_failure_is_drafted_from_a_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(SITE, str(tmp_path))
    log = tmp_path / "train.log"
    log.write_text('Traceback (most recent call last):\n  File "a.py", line 1, in f\nValueError: 5 is odd\n')
    assert main(["catalog", "new", "my-failure", "--from", str(log)]) == 0
    assert "5 is odd" in (tmp_path / "my_failure" / "failure.toml").read_text()
    assert main(["catalog", "new", "other", "--from", str(tmp_path / "none")]) == 2
    log.write_text("")
    assert main(["catalog", "new", "other", "--from", str(log)]) == 2
    assert not (tmp_path / "other").exists()
    assert "no fault in this log is new" in capsys.readouterr().err


def test_entry_with_problems_exits_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = failure("dud-assertion", folder=tmp_path, affected=(clause(mcore="<0.9"),))
    monkeypatch.setattr(loading, "load", lambda: catalog(entry))
    assert main(["catalog", "check", "dud-assertion"]) == 1
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("dud-assertion: ")
    assert second.startswith("  case ")


def test_examples_of_a_run_are_kept_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = Signature(
        Identifier("save-assertion"), "AssertionError", frame="default_planner.py:create_default_global_save_plan"
    )
    entry = failure("dud-assertion", folder=tmp_path / "dud", signature=(shown,))
    monkeypatch.setattr(loading, "load", lambda: catalog(entry))
    out = tmp_path / "out"
    night = rendered(Paths(out), "20260131T020000000000Z-night")
    assert any(record.verdict is Verdict.REPRODUCED for record in night.records)
    assert main(["catalog", "keep", "--out", str(out)]) == 0
    kept = capsys.readouterr().out.split()
    assert {Path(path).parent.name for path in kept} == {"shows", "look_alikes", "dud"}
    assert main(["catalog", "keep", "--out", str(out), "--failure", "dud-assertion"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'dud' / 'night.toml'}\n"


RULES = (clause(mcore=">=0.4"),)


def test_list_shows_each_topic(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    entries = (
        failure("break", topic="data", first_seen="2025-04", affected=RULES),
        failure("other", topic="hangs", affected=RULES),
    )
    topics = (Topic(Identifier("data"), "Datasets", "Is the data read?"), Topic(Identifier("hangs"), "Hangs", "Who?"))
    monkeypatch.setattr(loading, "load", lambda: replace(catalog(*entries), topics=topics))
    assert main(["catalog", "list"]) == 0
    data, hangs = capsys.readouterr().out.split("Hangs (1). Who?")
    first, _, row = data.splitlines()[:3]
    assert first == "Datasets (1). Is the data read?"
    assert row.split()[:4] == ["break", "2025-04", "-", "no"]
    assert "other" in hangs


def test_draft_is_listed_and_checked_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All other commands leave it out: it need not even be TOML."""
    monkeypatch.setenv(SITE, str(tmp_path))
    assert main(["catalog", "new", "my-failure"]) == 0
    with (tmp_path / "my_failure" / "failure.toml").open("a") as file:
        file.write("[[not TOML\n")
    assert "my-failure" not in {failure.id for failure in loading.load().failures}
    assert main(["catalog", "list"]) == 0
    assert "\nDrafts (1). " in capsys.readouterr().out
    assert main(["catalog", "check", "my-failure"]) == 1
    assert "my-failure: a draft" in capsys.readouterr().out
    assert main(["match", str(tmp_path / "my_failure" / "failure.toml")]) == 1
    assert main(["check", "torch=2.4.0"]) == 0
