"""The parts of matrix/kit/gpt_dataset.py that do not need megatron-core."""

from __future__ import annotations

import os

import pytest

from matrix.kit.gpt_dataset import forked


class BrokenError(Exception):
    """Raised by a child."""


def test_forked_raises_the_child_s_exception() -> None:
    with pytest.raises(BrokenError, match="by a child"):
        forked(lambda: (_ for _ in ()).throw(BrokenError("by a child")))


def test_forked_raises_when_the_child_dies() -> None:
    with pytest.raises(EOFError):
        forked(lambda: os._exit(1))
