"""Import megatron-core's checkpointing beside nvidia-resiliency-ext."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matrix.kit.rank import Rank


def import_checkpointing(rank: Rank) -> str:
    """Return the version of megatron-core whose checkpointing was imported."""
    import megatron.core
    import nvidia_resiliency_ext  # noqa: F401  (it must be there)
    from megatron.core import dist_checkpointing  # noqa: F401

    return str(megatron.core.__version__)
