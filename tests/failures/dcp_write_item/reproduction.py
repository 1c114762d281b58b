"""Save and load a checkpoint: megatron-core calls torch's private _write_item with too few arguments."""

from __future__ import annotations

from matrix.kit.gpt import save_and_load

__all__ = ["save_and_load"]
