"""What the kit of GPTDataset decides without megatron-core."""

from __future__ import annotations

import os

import pytest

from matrix.kit.gpt_dataset import forked


class BrokenError(Exception):
    """Raised by a child."""


def test_what_a_forked_process_raises_is_raised() -> None:
    with pytest.raises(BrokenError, match="by a child"):
        forked(lambda: (_ for _ in ()).throw(BrokenError("by a child")))


def test_a_forked_process_that_dies_is_noticed() -> None:
    with pytest.raises(EOFError):
        forked(lambda: os._exit(1))
