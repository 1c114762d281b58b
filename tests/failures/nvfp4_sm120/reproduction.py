"""Pass values through a linear layer of Transformer Engine that quantizes them to NVFP4."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from matrix.kit import megatron

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

SIZE = 128  # of both dimensions: the fused kernel takes multiples of it


def forward(rank: Rank, *, transform: bool) -> list[int]:
    """Return the shape of the output, with or without the random Hadamard transform. No stand-in."""
    import torch
    import transformer_engine.pytorch as te

    torch.cuda.set_device(megatron.device(rank))
    recipes: Any = importlib.import_module("transformer_engine.common.recipe")
    layer = te.Linear(SIZE, SIZE, params_dtype=torch.bfloat16)
    given = torch.ones(SIZE, SIZE, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    with te.fp8_autocast(enabled=True, fp8_recipe=recipes.NVFP4BlockScaling(disable_rht=not transform)):
        output = layer(given)
    output.sum().backward()
    torch.cuda.synchronize()
    return list(output.shape)
