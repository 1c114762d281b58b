"""Commits and files of a clone, read without a checkout."""

from __future__ import annotations

from pathlib import Path

import pytest

from matrix.ground.errors import MatrixError
from matrix.prove.bisection.clone import Clone
from tests.unit.prove.bisection.repositories import chain, clone, ids


@pytest.mark.parametrize("compiled", [False, True])
def test_content_separates_commits_of_each_package(tmp_path: Path, compiled: bool) -> None:
    """megatron-core has nothing that is compiled: --compile concerns Transformer Engine."""
    with Clone(str(chain(tmp_path / "clone", 3)), "megatron-core", compiled=compiled) as opened:
        assert len({opened.content(opened.commit(name).id) for name in ("c0", "c1", "c2")}) == 3


def test_missing_revision_is_an_error(tmp_path: Path) -> None:
    path = chain(tmp_path / "clone", 3)
    with (
        Clone(str(path), "megatron-core") as opened,
        pytest.raises(MatrixError, match="no such revision"),
    ):
        opened.commit("c9")


def test_files_are_read_by_blob_id(tmp_path: Path) -> None:
    """Content and ids are git's; files that `part` rejects are not read."""
    path = clone(tmp_path / "clone", [("one", [], {"megatron/core/x.py": "a = 1\n", "megatron/y.txt": "no"})])
    with Clone(str(path), "megatron-core") as opened:
        commit = opened.commit("one").id
        files = opened.files(commit, lambda name: name.endswith(".py"))

        assert opened.blobs(files)["megatron/core/x.py"] == b"a = 1\n"
        assert set(files) == {"megatron/core/x.py", "megatron/core/package_info.py"}
        assert files["megatron/core/x.py"] in ids(path, "one:megatron/core/x.py")
        assert opened.version(commit) == f"0.9.0rc0+{commit[:7]}"
