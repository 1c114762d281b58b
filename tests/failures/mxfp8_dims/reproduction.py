"""Pass values through a linear layer of Transformer Engine that quantizes them to MXFP8."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matrix.kit import megatron

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

WIDTH = 64  # of inputs and outputs


def forward(rank: Rank, *, tokens: int) -> list[int]:
    """Return the shape of the output for this number of tokens, a multiple of 16 as FP8 requires. No stand-in."""
    import torch
    import transformer_engine.pytorch as te
    from transformer_engine.common.recipe import MXFP8BlockScaling

    torch.cuda.set_device(megatron.device(rank))
    layer = te.Linear(WIDTH, WIDTH, params_dtype=torch.bfloat16)
    given = torch.ones(tokens, WIDTH, dtype=torch.bfloat16, device="cuda")
    with te.fp8_autocast(enabled=True, fp8_recipe=MXFP8BlockScaling()):
        output = layer(given)
    torch.cuda.synchronize()
    return list(output.shape)
