"""Import the transformer of megatron-core."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matrix.kit.rank import Rank


def reproduce(rank: Rank) -> None:
    """Import it."""
    import megatron.core.transformer.transformer_block  # noqa: F401
