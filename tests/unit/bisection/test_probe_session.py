"""The store of a bisection: one process at a time, and nothing of it is lost by another."""

from __future__ import annotations

from pathlib import Path

import pytest

from matrix.bisection.probe_session import ProbeStore
from matrix.errors import MatrixError


def test_second_bisection_in_a_store_is_refused(tmp_path: Path) -> None:
    """With --no-cache it would delete the journals that the first one writes."""
    store = ProbeStore(tmp_path / "store")
    kept = tmp_path / "store/1/journal"
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.touch()
    for fresh in (False, True):
        with pytest.raises(MatrixError, match="another process works on this bisection"):
            ProbeStore(tmp_path / "store", fresh=fresh)
    assert kept.exists()
    store.close()
    ProbeStore(tmp_path / "store", fresh=True).close()
    assert not kept.exists()
