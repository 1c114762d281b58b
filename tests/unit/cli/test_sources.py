"""`megatrix sources`: what is there, where, how old; `fetch` from a mirror; the offer at the end of a night."""

from __future__ import annotations

from pathlib import Path

import pytest

from matrix.cli.main import main
from matrix.ground.cases.cells import revisions
from matrix.ground.catalog import loading
from tests.unit import catalogs
from tests.unit.catalogs import failure
from tests.unit.prove.provision.makers import make_clone


@pytest.fixture(autouse=True)
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handlers: None) -> None:
    """Set a small catalog, an empty cache and a mirror of Megatron-LM."""
    mirror = make_clone(tmp_path / "mirror")
    monkeypatch.setattr(loading, "load", lambda: catalogs.catalog(failure()))
    monkeypatch.setattr("matrix.cli.sources.revisions", lambda known: dict.fromkeys(revisions(known), ("main",)))
    monkeypatch.setenv("MEGATRIX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("MEGATRIX_MEGATRON_LM_URL", str(mirror))
    monkeypatch.chdir(tmp_path)


def test_missing_clones_are_listed_with_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sources"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [["megatron-lm", "none;"], ["transformer-engine", "none;"]]
    assert all("`megatrix sources fetch` gets it from" in line for line in lines)


def test_fetch_makes_a_clone_and_lists_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sources", "fetch", "megatron-lm"]) == 0
    out = capsys.readouterr().out
    assert f"megatron-lm         {tmp_path}/cache/sources/megatron-lm\n" in out
    assert "fetched less than a minute ago from file://" in out


def test_new_revisions_of_the_catalog_are_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["sources", "fetch", "megatron-lm"])
    monkeypatch.setattr("matrix.cli.sources.revisions", lambda known: dict.fromkeys(revisions(known), ("main", "v9")))
    main(["sources"])
    assert "cases need more: v9; `megatrix sources fetch` gets them" in capsys.readouterr().out
    main(["sources", "fetch", "megatron-lm"])
    assert "that repository lacks v9; cases that need it are unavailable" in capsys.readouterr().out


def test_a_named_clone_is_listed_with_its_setting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MEGATRIX_MEGATRON_LM", "/mine")
    main(["sources", "list", "megatron-lm"])
    assert capsys.readouterr().out == "megatron-lm         /mine (named by MEGATRIX_MEGATRON_LM)\n"


def test_a_misspelled_clone_has_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sources", "fetch", "megatron"]) == 2
    assert "did you mean megatron-lm?" in capsys.readouterr().err


def test_an_unreachable_mirror_ends_with_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MEGATRIX_MEGATRON_LM_URL", f"file://{tmp_path}/nothing")
    assert main(["sources", "fetch", "megatron-lm"]) == 2
    assert "fix:      set the URL of a mirror" in capsys.readouterr().err
