"""Temporary files of killed processes are deleted by the next one; nothing else is."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from matrix.prove.provision.project import ROOT
from matrix.read import scratch

OWN = f"megatrix-{os.getuid()}-"
# Makes its folder with a file in it, prints both folders that it uses, then waits for the end of its input.
OWNER = """
import os, sys, tempfile
from matrix.read import scratch
with scratch.entered():
    inner = tempfile.mkdtemp()
    os.mkdir(os.path.join(inner, "closed"), 0o000)
    print(scratch.folder(), inner, flush=True)
    sys.stdin.read()
"""


class Owner:
    """A process with a folder for temporary files in `root`; `joins` the folder of another one."""

    def __init__(self, root: Path, joins: str = "") -> None:
        environment = {**os.environ, "TMPDIR": joins or str(root), scratch.VARIABLE: joins}
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWNER],
            cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        folder, inner = self.process.stdout.readline().split()
        self.folder, self.inner = Path(folder), Path(inner)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def end(self) -> None:
        self.process.communicate("")


@pytest.fixture
def root() -> Path:
    """A short path; that of tmp_path may be too long for sockets."""
    return Path(tempfile.mkdtemp(prefix="t-", dir="/tmp"))


def test_folder_is_deleted_at_exit(root: Path) -> None:
    owner = Owner(root)
    assert owner.folder.parent == root
    assert owner.inner.parent == owner.folder
    owner.end()
    assert [*root.iterdir()] == []
    root.rmdir()


def test_folder_is_deleted_after_multiprocessings(root: Path) -> None:
    """Its folder for sockets lies in this one; at exit it would print a traceback, had this one been deleted before."""
    code = "from multiprocessing import util\nfrom matrix.read import scratch\n"
    code += "with scratch.entered():\n    print(scratch.folder(), util.get_temp_dir())"
    environment = {**os.environ, "TMPDIR": str(root), scratch.VARIABLE: ""}
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    folder, inner = map(Path, ended.stdout.split())
    assert (inner.parent, folder.exists(), ended.stderr) == (folder, False, "")


def test_killed_owner_is_swept_a_live_one_not(root: Path) -> None:
    dead, alive = Owner(root), Owner(root)
    dead.kill()
    assert dead.inner.is_dir()
    scratch.sweep(root)
    assert [*root.iterdir()] == [alive.folder]
    assert alive.inner.is_dir()
    alive.end()
    root.rmdir()


def test_folder_lives_as_long_as_any_process(root: Path) -> None:
    """pytest's processes stop seconds after a run that was killed."""
    first = Owner(root)
    second = Owner(root, joins=str(first.folder))
    assert second.folder == first.folder
    first.kill()
    scratch.sweep(root)
    assert second.inner.is_dir()
    second.end()
    scratch.sweep(root)
    assert [*root.iterdir()] == []
    root.rmdir()


def test_process_joins_no_swept_folder(root: Path) -> None:
    owner = Owner(root, joins=str(root / f"{OWN}aaaaaaaa"))
    assert owner.folder.parent == root
    owner.end()
    root.rmdir()


def test_nothing_of_others_is_swept(tmp_path: Path) -> None:
    """A link, a file, another name, another user's folder; a link within a swept folder."""
    (kept := tmp_path / "kept").mkdir()
    (kept / "file").touch()
    (tmp_path / f"{OWN}aaaaaaaa").symlink_to(kept)
    (tmp_path / f"{OWN}bbbbbbbb").touch()
    (tmp_path / f"{OWN}notes-of-mine").mkdir()
    (tmp_path / "megatrix-gpus-0").mkdir()
    (tmp_path / f"megatrix-{os.getuid() + 1}-cccccccc").mkdir()
    names = {path.name for path in tmp_path.iterdir()}
    (swept := tmp_path / f"{OWN}dddddddd").mkdir()
    (swept / "link").symlink_to(kept)
    scratch.sweep(tmp_path)
    assert names == {path.name for path in tmp_path.iterdir()}
    assert (kept / "file").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_folder_of_another_user_is_kept(tmp_path: Path) -> None:
    other = tmp_path / f"{OWN}aaaaaaaa"
    other.mkdir()
    os.chown(other, 65534, 65534)
    scratch.sweep(tmp_path)
    assert other.is_dir()


def test_folder_with_a_mount_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """debootstrap mounts /proc in its folder: nothing behind a mount is deleted."""
    folder = tmp_path / f"{OWN}aaaaaaaa"
    folder.mkdir()
    (tmp_path / "mounts").write_text(f"36 35 98:0 / {folder}/proc rw - proc proc rw\n")
    monkeypatch.setattr(scratch, "MOUNTS", tmp_path / "mounts")
    scratch.sweep(tmp_path)
    assert folder.is_dir()


def test_long_tmpdir_gives_way_to_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of a socket has at most 107 bytes."""
    monkeypatch.delenv(scratch.VARIABLE, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("a" * 60)))
    assert scratch.root() == Path("/tmp")
