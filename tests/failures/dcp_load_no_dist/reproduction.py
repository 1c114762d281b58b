"""Save and load a checkpoint: megatron-core passes torch's loader an argument that it does not have."""

from __future__ import annotations

from matrix.kit.gpt import save_and_load

__all__ = ["save_and_load"]
