"""Import megatron.core with a Transformer Engine whose __version__ is not a string."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matrix.kit.rank import Rank


def import_core(rank: Rank) -> dict[str, Any]:
    """Import megatron.core with Transformer Engine installed; return both versions."""
    from matrix.kit import cpu_device, te_extension

    if rank.device == "cpu":
        cpu_device.install()
        te_extension.install(rank.workdir / f"te-{rank.rank}")
    import megatron.core
    import transformer_engine

    return {"megatron-core": megatron.core.__version__, "transformer_engine": str(transformer_engine.__version__)}
