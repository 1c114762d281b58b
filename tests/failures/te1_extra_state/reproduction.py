"""Read the FP8 state that another release of Transformer Engine wrote."""

from __future__ import annotations

from matrix.kit.te_extra_state import read, write

__all__ = ["read", "write"]
