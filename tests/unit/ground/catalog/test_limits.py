"""Memory limits of a case."""

from __future__ import annotations

import pytest

from matrix.ground.catalog.codec import MalformedError, decode
from matrix.ground.catalog.failure import GIB, MIB, NO_LIMITS, Limits
from matrix.ground.catalog.schema import Size


def test_limits_are_read_with_their_units() -> None:
    assert decode(Limits, {"memory": "9 GiB", "shm": "64 MiB"}) == Limits(memory=Size(9 * GIB), shm=Size(64 * MIB))
    assert decode(Limits, {}) == NO_LIMITS


@pytest.mark.parametrize("size", ["64 MB", "0 GiB", "-1 GiB", "1.5 GiB", 64])
def test_other_texts_are_no_size(size: object) -> None:
    with pytest.raises(MalformedError):
        decode(Limits, {"memory": size})
