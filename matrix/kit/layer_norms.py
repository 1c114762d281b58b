"""Stand-ins for two compiled layer norms that megatron-core <= 0.7 uses in every model, unasked.

torch's own layer norm under TE's and Apex's interfaces: the same values, none of their fused kernels.
"""

from __future__ import annotations

from typing import Any

import torch


class LayerNorm(torch.nn.LayerNorm):
    """For transformer_engine.pytorch.LayerNorm: the norm behind the last layer."""

    def __init__(self, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__(hidden_size, eps)


class FusedLayerNormAffineFunction:
    """For apex.normalization.fused_layer_norm.FusedLayerNormAffineFunction: the norms inside a layer."""

    @staticmethod
    def forward(context: Any, input: Any, weight: Any, bias: Any, normalized_shape: Any, eps: float) -> Any:
        """Exist for inspection: megatron-core reads the argument names, without `memory_efficient` among them."""
        raise NotImplementedError("autograd calls apply")

    @staticmethod
    def apply(input: Any, weight: Any, bias: Any, normalized_shape: Any, eps: float) -> Any:
        """Return the layer norm of `input` over its last dimensions `normalized_shape`."""
        return torch.nn.functional.layer_norm(input, normalized_shape, weight, bias, eps)
