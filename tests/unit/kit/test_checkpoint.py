"""A package that a save needs and an image lacks."""

from __future__ import annotations

import pytest

from matrix.kit.checkpoint import required
from matrix.kit.rank import LackError


class CheckpointingException(Exception):
    """As megatron-core's."""


def save(absent: str) -> None:
    with required():
        try:
            raise ModuleNotFoundError(f"No module named {absent!r}", name=absent)
        except ModuleNotFoundError as error:
            raise CheckpointingException(f"Cannot import a default strategy. Error: {error}") from error


@pytest.mark.parametrize(("name", "expected"), [("zarr", LackError), ("megatron.core", CheckpointingException)])
def test_absent_package_of_a_save_is_lacking(name: str, expected: type[Exception]) -> None:
    """megatron-core raises its own exception from that of the import; a part of its own that is absent is a failure."""
    with pytest.raises(expected, match=name):
        save(name)
