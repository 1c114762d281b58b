"""Measurement in a forked process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from matrix.ground.catalog.folders import load_module

forked = load_module(Path(__file__).parent, "measure").forked


class BrokenError(Exception):
    """Raised by a child."""


def test_forked_raises_the_child_s_exception() -> None:
    with pytest.raises(BrokenError, match="by a child"):
        forked(lambda: (_ for _ in ()).throw(BrokenError("by a child")))


def test_forked_raises_when_the_child_dies() -> None:
    with pytest.raises(EOFError):
        forked(lambda: os._exit(1))
