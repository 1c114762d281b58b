"""Folders of the cache are whole or absent."""

from __future__ import annotations

from pathlib import Path

import pytest

from matrix.ground.catalog.folders import default_root
from matrix.prove.provision.cache_folders import locked, making


def test_a_folder_appears_when_it_is_complete(tmp_path: Path) -> None:
    with making(tmp_path / "made") as temporary:
        (temporary / "file").write_text("content")
        assert not (tmp_path / "made").exists()
    assert (tmp_path / "made" / "file").read_text() == "content"
    assert [path.name for path in tmp_path.iterdir()] == ["made"]
    assert (tmp_path / "made").stat().st_mode & 0o055 == 0o055


def test_an_interrupted_folder_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), making(tmp_path / "made"):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_an_older_folder_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "old").touch()
    (tmp_path / "made.abc.making").mkdir()  # of a killed process
    with making(tmp_path / "made") as temporary:
        (temporary / "new").touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["made", "new"]


def test_a_failure_keeps_the_older_folder(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    with pytest.raises(OSError, match="full"), making(tmp_path / "made"):
        raise OSError("full")
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_the_folder_of_a_lock_is_made(tmp_path: Path) -> None:
    with locked(tmp_path / "new" / "lock"):
        assert (tmp_path / "new" / "lock").is_file()


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"MEGATRIX_CACHE": "/site/cache", "XDG_CACHE_HOME": "/home/cache"}, "/site/cache"),
        ({"XDG_CACHE_HOME": "/home/cache"}, "/home/cache/megatrix"),
        ({}, str(Path.home() / ".cache/megatrix")),
    ],
)
def test_the_site_chooses_the_cache(environ: dict[str, str], expected: str) -> None:
    assert str(default_root(environ)) == expected
