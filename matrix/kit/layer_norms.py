"""Stand-ins for two compiled layer norms that megatron-core <= 0.7 uses in every model.

They are torch's own layer norm with the interfaces of TE and Apex: the same values, without their fused kernels.
"""

from __future__ import annotations

from typing import Any

import torch


class LayerNorm(torch.nn.LayerNorm):
    """Replaces transformer_engine.pytorch.LayerNorm: the norm after the last layer."""

    def __init__(self, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__(hidden_size, eps)


class FusedLayerNormAffineFunction:
    """Replaces apex.normalization.fused_layer_norm.FusedLayerNormAffineFunction: the norms inside a layer."""

    @staticmethod
    def forward(context: Any, input: Any, weight: Any, bias: Any, normalized_shape: Any, eps: float) -> Any:
        """Provide a signature: megatron-core inspects the argument names; `memory_efficient` is not among them."""
        raise NotImplementedError("autograd calls apply")

    @staticmethod
    def apply(input: Any, weight: Any, bias: Any, normalized_shape: Any, eps: float) -> Any:
        """Return the layer norm of `input` over its last dimensions `normalized_shape`."""
        return torch.nn.functional.layer_norm(input, normalized_shape, weight, bias, eps)
