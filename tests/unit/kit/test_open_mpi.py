"""Open MPI's variables of a rank."""

from __future__ import annotations

import faulthandler
import os
from pathlib import Path

import pytest

from matrix.kit import open_mpi
from matrix.kit.rank import Rank

NAMES = ("OMPI_MCA_mpi_param_check", "TMPDIR", "OMPI_MCA_btl_sm_backing_directory")


@pytest.mark.parametrize(("device", "disables"), [("cpu", 0), ("cuda", 1)])
def test_files_are_in_the_ranks_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, disables: int
) -> None:
    """On a GPU the crash is printed by Open MPI, not by faulthandler."""
    for name in NAMES:
        monkeypatch.setenv(name, "")
    disabled: list[None] = []
    monkeypatch.setattr(faulthandler, "disable", lambda: disabled.append(None))
    open_mpi.prepare(Rank(0, 1, device, "", tmp_path), parameter_checks=True)
    assert [os.environ[name] for name in NAMES] == ["1", str(tmp_path), str(tmp_path)]
    assert len(disabled) == disables
