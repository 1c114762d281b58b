"""The kind of a file, and files that can't be read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from matrix.ask.check.declaring import Reader, read_file, reader_of
from matrix.ask.check.files.dockerfile import read_dockerfile
from matrix.ask.check.files.job_yaml import read_yaml
from matrix.ask.check.files.requirements import read_requirements, read_toml_lock
from matrix.ask.check.files.shell import read_script
from matrix.ground.catalog.regular_file import LARGEST
from matrix.ground.errors import MatrixError


@pytest.mark.parametrize(
    ("name", "text", "reader"),
    [
        ("requirements-gpu.txt", "torch", read_requirements),
        ("frozen", "torch==2.4.1\nnumpy==1.26.4", read_requirements),
        ("Dockerfile.ci", "FROM a", read_dockerfile),
        ("ci.Dockerfile", "FROM a", read_dockerfile),
        ("Containerfile", "FROM a", read_dockerfile),
        ("recipe", "FROM a", read_dockerfile),
        ("train.sbatch", "", read_script),
        ("train", "#!/bin/sh", read_script),
        ("train", "#SBATCH -N 2", read_script),
        ("env.yaml", "dependencies: []", read_yaml),
        ("llama.yaml", "model: {}", read_yaml),
        ("uv.lock", "", read_toml_lock),
    ],
)
def test_kind_comes_from_name_then_content(name: str, text: str, reader: Reader) -> None:
    assert reader_of(name, text, name) is reader


def test_included_file_is_relative_to_its_file(tmp_path: Path) -> None:
    (tmp_path / "r.txt").write_text("-r base.txt")
    (tmp_path / "base.txt").write_text("torch==2.4.1")
    assert [one.version for one in read_file(tmp_path / "r.txt").pins] == ["2.4.1"]


def test_utf_16_is_read(tmp_path: Path) -> None:
    (tmp_path / "r.txt").write_text("torch==2.4.1\n", encoding="utf-16")
    assert [one.version for one in read_file(tmp_path / "r.txt").pins] == ["2.4.1"]


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(LARGEST + 1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "No such file"),
        (Path.mkdir, "a folder"),
        (make_fifo, "a FIFO"),
        (make_huge, "a file of 67,108,865 bytes"),
        (lambda path: path.write_bytes(b"\x7fELF\0\0"), "binary"),
        (lambda path: path.write_text("hello"), "not a file that declares a stack"),
    ],
    ids=["missing", "folder", "fifo", "huge", "binary", "prose"],
)
def test_unreadable_file_raises(tmp_path: Path, make: object, message: str) -> None:
    assert callable(make)
    make(tmp_path / "file")
    with pytest.raises(MatrixError, match=message):
        read_file(tmp_path / "file")
