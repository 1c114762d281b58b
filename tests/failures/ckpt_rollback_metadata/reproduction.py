"""Read a checkpoint that another release of megatron-core wrote."""

from __future__ import annotations

from matrix.kit.checkpoint import read, write

__all__ = ["read", "write"]
