"""Save and load a checkpoint in every layout: TP alone can't tell half a fix from a whole one, so PP=2 is there too."""

from __future__ import annotations

from matrix.kit.checkpoint import save_and_load

__all__ = ["save_and_load"]
