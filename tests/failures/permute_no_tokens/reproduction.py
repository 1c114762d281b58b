"""Permute tokens for experts of which none was chosen."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from matrix.kit import cpu_device, megatron

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

KERNELS = "transformer_engine.pytorch.triton.permutation"
TOKENS, HIDDEN, EXPERTS = 4, 8, 2


def permute(rank: Rank, *, chosen: int, fused: bool = True) -> list[int]:
    """Return the shape of the permuted tokens, `chosen` of which go to an expert of this rank.

    megatron-core's and Transformer Engine's Python are real; without a GPU, the Triton kernels below them are replaced.
    """
    torch = megatron.start(rank)
    from megatron.core.transformer.moe import moe_utils

    device = megatron.device(rank)
    routing = torch.zeros(TOKENS, EXPERTS, dtype=torch.bool, device=device)
    routing[:chosen, 0] = True
    given = [torch.zeros(TOKENS, HIDDEN, device=device), routing]
    if rank.device == "cpu":
        kernels: Any = importlib.import_module(KERNELS)
        kernels.make_row_id_map = lambda routing, *_: torch.zeros(routing.shape[0], 1, dtype=torch.int32)
        kernels.permute_with_mask_map = lambda given, *_: (given.new_zeros(chosen, HIDDEN), None, None)
        given = cpu_device.as_cuda(*given)
    permuted = moe_utils.permute(*given, num_out_tokens=chosen, fused=fused)
    megatron.stop()
    return list(permuted[0].shape)
