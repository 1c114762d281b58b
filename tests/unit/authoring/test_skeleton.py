"""The files of a new failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from matrix.authoring.skeleton import create
from matrix.catalog.failure import Failure
from matrix.catalog.schema import read_toml
from matrix.errors import MatrixError


@pytest.mark.parametrize("contract", [False, True])
def test_a_skeleton_has_the_keys_of_an_entry(tmp_path: Path, contract: bool) -> None:
    folder = create("mask-is-kept", tmp_path, contract=contract)
    entry = read_toml(folder / "failure.toml")
    assert (folder.name, entry["id"]) == ("mask_is_kept", "mask-is-kept")
    assert entry.keys() <= Failure.__dataclass_fields__.keys()
    assert (folder / "reproduction.py").exists() is not contract


def test_an_existing_failure_is_not_overwritten(tmp_path: Path) -> None:
    create("one", tmp_path, contract=True)
    with pytest.raises(MatrixError, match="the failure exists"):
        create("one", tmp_path, contract=True)


@pytest.mark.parametrize("id", ["Big", "under_score", "", "-a", "a--b", "../a"])
def test_a_wrong_id_is_refused(tmp_path: Path, id: str) -> None:
    with pytest.raises(MatrixError, match="not an id of a failure"):
        create(id, tmp_path, contract=True)
