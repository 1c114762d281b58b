"""Import the function that a framework imports from megatron-core."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matrix.kit.rank import Rank


def reproduce(rank: Rank) -> None:
    """Import it."""
    from megatron.core.distributed.finalize_model_grads import _get_main_grad_attr  # noqa: F401
