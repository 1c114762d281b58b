"""Import the modules of megatron-core that need pkg_resources."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matrix.kit.rank import Rank


def import_transformer(rank: Rank) -> str:
    """Return the version of megatron-core whose transformer modules were imported."""
    import megatron.core
    import megatron.core.transformer.transformer_config  # noqa: F401

    return str(megatron.core.__version__)
