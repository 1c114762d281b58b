"""What fails, on each rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matrix.kit.rank import Rank


def reproduce(rank: Rank) -> None:
    """Run it. Raises what upstream raises."""
    from megatron.core.utils import get_tensor_model_parallel_group_if_none  # noqa: F401
