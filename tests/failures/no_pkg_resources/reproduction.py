"""Import a module of megatron-core that needed pkg_resources in each release that used it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matrix.kit.rank import Rank


def import_attention(rank: Rank) -> str:
    """Return the name of the imported module."""
    from megatron.core.transformer import attention

    return str(attention.__name__)
