"""Save and load a checkpoint in every layout: with TP alone a partial fix also passes, so PP=2 is tested too."""

from __future__ import annotations

from matrix.kit.gpt import save_and_load

__all__ = ["save_and_load"]
