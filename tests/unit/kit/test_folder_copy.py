"""The copy of a folder: small files are its own, what is large or hidden is a link."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from matrix.kit import command
from matrix.kit.command import copy_folder


def test_small_files_are_copied_and_others_linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "LARGEST", 10)
    source = tmp_path / "source"
    (source / "deep" / "deeper").mkdir(parents=True)
    (source / ".git").mkdir()
    (source / "deep" / "deeper" / "small").write_text("1")
    (source / "large").write_text("1" * 11)
    (source / "dangling").symlink_to("nowhere")
    os.mkfifo(source / "pipe")
    copy_folder(source, source / "copy")

    copy = source / "copy"
    links = {path.name for path in copy.rglob("*") if path.is_symlink()}
    assert links == {"large", ".git", "dangling", "pipe"}
    assert (copy / "deep" / "deeper" / "small").read_text() == "1"
    assert not (copy / "copy").exists()


def test_what_is_beyond_the_limits_is_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The upper levels come first."""
    monkeypatch.setattr(command, "MOST", 2)
    source = tmp_path / "source"
    (source / "a" / "b").mkdir(parents=True)
    (source / "z").write_text("z")
    copy_folder(source, tmp_path / "copy")

    assert not (tmp_path / "copy" / "a").is_symlink()
    assert not (tmp_path / "copy" / "z").is_symlink()
    assert (tmp_path / "copy" / "a" / "b").is_symlink()
