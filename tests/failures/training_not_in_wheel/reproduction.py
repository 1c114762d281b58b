"""Import a module of the Megatron-LM repository beside the installed megatron-core."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matrix.kit.rank import Rank


def import_module(rank: Rank, *, module: str) -> str:
    """Import megatron.core, then `module`, as a training script does; return the name of the module."""
    import megatron.core  # noqa: F401  (the wheel)

    return importlib.import_module(module).__name__
