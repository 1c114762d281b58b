"""The timeouts of a stop have a common limit."""

from __future__ import annotations

import pytest

from matrix.ground.errors import MatrixError
from matrix.prove.execution.ranks.rank_spec import Timeouts


def test_timeouts_with_a_too_large_sum_raise() -> None:
    with pytest.raises(MatrixError, match="at most 5 s"):
        Timeouts(terminate_s=3.0)
