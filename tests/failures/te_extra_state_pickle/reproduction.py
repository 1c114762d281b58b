"""Read the FP8 state that another release of Transformer Engine wrote."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from matrix.kit.te_extra_state import read, write

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

__all__ = ["read", "read_trusted", "write"]


def read_trusted(rank: Rank) -> float:
    """Read the state with Transformer Engine's own variable, which allows pickles."""
    os.environ["NVTE_ALLOW_UNSAFE_PICKLE_EXTRA_STATE"] = "1"
    return read(rank)
