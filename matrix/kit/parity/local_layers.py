"""Two of upstream's local layers, replaced where the originals refuse what the comparison needs.

torch's norm, which upstream takes without apex, refuses sequence parallelism: its parameters lack the mark by which
finalize_model_grads sums their gradients. Upstream's DotProductAttention refuses context parallelism.
"""

from __future__ import annotations

from typing import Any


def install(config: Any) -> None:
    """Replace them in upstream's specs, in this process."""
    from megatron.core.models.gpt import gpt_layer_specs, moe_module_specs
    from megatron.core.transformer import transformer_block

    norm = _norm()
    for module in (gpt_layer_specs, moe_module_specs, transformer_block):
        for name in ("LNImpl", "LayerNormImpl", "FusedLayerNorm", "WrappedTorchNorm"):
            if hasattr(module, name):
                setattr(module, name, norm)
    try:
        from megatron.core.models import backends
    except ImportError:
        return
    backends.LocalSpecProvider.layer_norm = lambda self, *_, **__: norm


def _norm() -> Any:
    import torch

    class MarkedNorm:
        """torch's LayerNorm or RMSNorm, with parameters that are marked as upstream's fused norm marks them."""

        def __new__(cls, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> Any:
            kind = torch.nn.RMSNorm if config.normalization == "RMSNorm" else torch.nn.LayerNorm
            norm = kind(hidden_size, eps=eps)
            for parameter in norm.parameters():
                parameter.sequence_parallel = config.sequence_parallel
            return norm

    return MarkedNorm
