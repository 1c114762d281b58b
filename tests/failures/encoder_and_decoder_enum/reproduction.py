"""What fails, on each rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matrix.kit.rank import Rank


def reproduce(rank: Rank) -> dict[str, Any]:
    """Run it. Raises what upstream raises."""
    from megatron.core.enums import ModelType

    return {"encoder_and_decoder": str(ModelType.encoder_and_decoder)}
