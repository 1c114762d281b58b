"""Read a checkpoint that another release of megatron-core wrote."""

from __future__ import annotations

from matrix.kit.gpt import read, write

__all__ = ["read", "write"]
