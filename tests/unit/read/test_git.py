"""A clone is read without running what it configures, for any owner, without a network."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from matrix.ground.catalog.stack import MCORE
from matrix.ground.errors import MatrixError
from matrix.kit.pretrain import write_tree
from matrix.kit.rank import LackError
from matrix.prove.bisection.axes import Clone
from matrix.prove.provision.overlays import Overlays, OverlaySpec
from matrix.read import package_source
from matrix.read.api import sides
from matrix.read.git import Repository
from tests.unit.prove.provision.makers import commit, git, make_clone, make_hostile_clone


def contents(clone: Path, revision: str = "main") -> package_source.Contents:
    return package_source.inspect(package_source.parse(f"{clone}@{revision}", MCORE))


def by_bisect(clone: Path) -> None:
    with Clone(str(clone), MCORE) as read:
        old, new = read.commit("core_v0.9.0"), read.commit("main")
        assert read.between(old.id, new.id) == [old, new]
        assert read.fork(old.id, new.id) == old.id
        read.version(new.id)
        read.blobs(read.files(new.id, lambda path: True))


def by_contract(clone: Path) -> None:
    files = sides.files_of(contents(clone), lambda path: True)
    assert files["megatron/core/model.py"] == b"LAYERS = 2\n"


def by_run(clone: Path) -> None:
    spec = OverlaySpec((package_source.parse(f"{clone}@main", MCORE),), "3.10", {})
    folder = Overlays(clone.parent / "cache").provide(spec).path
    assert sorted(path.name for path in (folder / "megatron").rglob("*.py")) == [
        "__init__.py", "model.py", "package_info.py",
    ]  # fmt: skip


def by_reproduction(clone: Path) -> None:
    write_tree(str(clone), "main", clone.parent / "tree")


def by_missing_revision(clone: Path) -> None:
    with pytest.raises(MatrixError, match="no such revision"):
        contents(clone, "core_v0.8")


def by_missing_object(clone: Path) -> None:
    with (
        Clone(str(clone), MCORE) as read,
        pytest.raises(MatrixError, match=r"git cannot read this object(.|\n)*partial"),
    ):
        read.blobs(read.files("partial", lambda path: True))


@pytest.mark.parametrize(
    "read", [by_bisect, by_contract, by_run, by_reproduction, by_missing_revision, by_missing_object]
)
def test_reading_executes_nothing_of_a_clone(tmp_path: Path, read: Callable[[Path], None]) -> None:
    """The clone names a command in every key, attribute and hook that git may run."""
    marker = tmp_path / "executed"
    clone = make_hostile_clone(tmp_path / "Megatron-LM", marker)
    read(clone)
    assert not marker.exists()


def test_the_hostile_clone_is_hostile(tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    clone = make_hostile_clone(tmp_path / "Megatron-LM", marker)
    for command in (["log", "-1", "main"], ["archive", "main"], ["show", "partial"]):
        marker.unlink(missing_ok=True)
        subprocess.run(["git", f"--work-tree={clone}", f"--git-dir={clone}/.git", *command], capture_output=True)
        assert marker.exists(), command


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to another user")
@pytest.mark.parametrize("read", [by_bisect, by_contract, by_run])
def test_clones_of_other_users_are_read(tmp_path: Path, read: Callable[[Path], None]) -> None:
    clone = make_clone(tmp_path / "Megatron-LM")
    commit_id = commit_change(clone)
    for path in (clone, *clone.rglob("*")):
        os.chown(path, 65534, 65534, follow_symlinks=False)
    read(clone)
    assert contents(clone).identity.split()[1] == commit_id


def commit_change(clone: Path) -> str:
    (clone / "README").touch()
    return commit(clone, "Add a file")


def test_object_that_blocks_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clone = make_clone(tmp_path / "clone")
    monkeypatch.setattr("matrix.read.git.OBJECT_S", 0.2)
    id = git(clone, "rev-parse", "HEAD^{tree}")
    path = clone / ".git/objects" / id[:2] / id[2:]
    path.unlink()
    os.mkfifo(path)

    with pytest.raises(MatrixError, match=r"no answer of git cat-file within 0 s"), Repository(clone) as repository:
        repository.object(id)


def test_object_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros take little of a clone, and all of the memory when they are read."""
    clone = make_clone(tmp_path / "clone")
    monkeypatch.setattr("matrix.read.git.LARGEST", 100)

    with pytest.raises(MatrixError, match="read at most"), Repository(clone) as repository:
        repository.object("HEAD")


def test_git_file_with_a_nul_is_no_clone(tmp_path: Path) -> None:
    (tmp_path / ".git").write_bytes(b"gitdir: \0")
    with pytest.raises(MatrixError, match="not a git repository"):
        Repository(tmp_path).commit("HEAD")


def test_a_missing_tag_is_a_lack(tmp_path: Path) -> None:
    """A reproduction is then unavailable, not red."""
    with pytest.raises(LackError, match="core_v9"):
        write_tree(str(make_clone(tmp_path / "Megatron-LM")), "core_v9", tmp_path / "tree")


def test_a_linked_work_tree_is_read(tmp_path: Path) -> None:
    clone = make_clone(tmp_path / "Megatron-LM")
    git(clone, "worktree", "add", "--quiet", str(tmp_path / "linked"), "feature/x@2")
    assert contents(tmp_path / "linked", "HEAD").identity == contents(clone, "feature/x@2").identity


@pytest.mark.parametrize("name", ["..", ".", "a/b"])
def test_no_file_leaves_its_folder(tmp_path: Path, name: str) -> None:
    """git refuses to write such a tree, but reads one."""
    clone = make_clone(tmp_path / "Megatron-LM")
    blob = git(clone, "hash-object", "-w", "pretrain_gpt.py")
    (tmp_path / "tree").write_bytes(f"100644 {name}".encode() + b"\0" + bytes.fromhex(blob))
    tree = git(clone, "hash-object", "-t", "tree", "-w", "--literally", str(tmp_path / "tree"))
    with Repository(clone) as read, pytest.raises(MatrixError, match="not a folder of a commit"):
        read.write(tree, "", tmp_path / "out")


def test_trees_that_multiply_are_refused(tmp_path: Path) -> None:
    """Eight trees, each with ten times the one before: a hundred million files in 3 kB."""
    clone = make_clone(tmp_path / "Megatron-LM")
    blob = git(clone, "hash-object", "-w", "pretrain_gpt.py")
    entry = ("100644", blob)
    for _ in range(8):
        tree = b"".join(f"{entry[0]} {name}".encode() + b"\0" + bytes.fromhex(entry[1]) for name in range(10))
        (tmp_path / "tree").write_bytes(tree)
        entry = ("40000", git(clone, "hash-object", "-t", "tree", "-w", str(tmp_path / "tree")))
    with Repository(clone) as read, pytest.raises(MatrixError, match="too many files"):
        read.files(entry[1], "")
