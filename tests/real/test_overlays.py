"""Overlays from the real package index: requires uv, and the index or uv's cache."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from matrix.ground.errors import MatrixError
from matrix.prove.provision.overlays import Overlays, OverlaySpec
from matrix.read.commands import run
from matrix.read.package_source import Source, SourceKind

BASE = {"torch": "2.4.0", "numpy": "1.26.4"}


def release(version: str) -> OverlaySpec:
    """Return the overlay of a release for the Python that runs the tests, at most 3.11: 0.9.0 has no newer wheels."""
    minor = "{}.{}".format(*min(sys.version_info[:2], (3, 11)))
    return OverlaySpec((Source("megatron-core", SourceKind.PYPI, revision=version),), minor, BASE)


def test_release_is_fetched_once(tmp_path: Path) -> None:
    overlays = Overlays(tmp_path, run)

    overlay = overlays.provide(release("0.9.0"))

    stated = (overlay.path / "megatron/core/package_info.py").read_text()
    assert overlay.packages == {"megatron-core": "0.9.0"}
    assert "MINOR = 9" in stated
    assert list(overlay.path.glob("megatron/core/datasets/helpers*.so"))
    assert overlays.provide(release("0.9.0")) == overlay


def test_release_that_requires_a_newer_torch_raises(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match=r"megatron-core 0.15.3 requires torch>=2.6.0, the base has 2.4.0"):
        Overlays(tmp_path, run).provide(release("0.15.3"))


def test_unknown_release_raises(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match=r"no version of megatron-core==0.9.99"):
        Overlays(tmp_path, run).provide(release("0.9.99"))
