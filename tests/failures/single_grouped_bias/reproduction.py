"""Pass tokens to experts whose biases are one tensor."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from matrix.kit import cpu_device, experts, megatron

if TYPE_CHECKING:
    from matrix.kit.rank import Rank


def forward(rank: Rank, *, single: bool) -> list[int]:
    """Return the shape of the output; without a GPU, zeros replace the products below Transformer Engine's module."""
    os.environ["NVTE_GROUPED_LINEAR_SINGLE_PARAM"] = str(int(single))  # its own switch: without it, the flag is ignored
    made = experts.build(rank, bias=True, moe_single_grouped_bias=single)
    import torch

    given = [torch.zeros(4, experts.WIDTH, device=megatron.device(rank))]
    if rank.device == "cpu":
        from transformer_engine.pytorch.module.grouped_linear import _GroupedLinear

        returns_workspaces = "new_workspaces" in _GroupedLinear.forward.__code__.co_varnames  # since 2.15
        _GroupedLinear.forward = lambda _, given, *rest: (
            (torch.zeros_like(given), [None] * experts.EXPERTS) if returns_workspaces else torch.zeros_like(given)
        )
        given = cpu_device.as_cuda(*given)
    with torch.no_grad():
        output, _ = made(*given, [2, 2])
    megatron.stop()
    return list(output.shape)
