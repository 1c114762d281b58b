"""Pass packed sequences with the offsets of their padding to Transformer Engine's DotProductAttention.

Transformer Engine's Python is real: its selection of a backend. Stand-ins are the GPU and the compiled extension, which
answers that cuDNN has no kernel, as the library does for packed sequences below compute capability 9.0.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from matrix.kit import cpu_device, te_extension

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

PADDED = 4  # tokens of each of two sequences, with their padding
HEADS, WIDTH = 2, 16


def select(rank: Rank, *, length: int, same: bool = False) -> str:
    """Run the forward pass up to the backend for two sequences, the first of `length` tokens; return which is reached.

    `same`: the offsets with padding are the very tensor of those without. Raises what Transformer Engine raises.
    """
    import torch

    os.environ |= {"NVTE_DEBUG": "1", "NVTE_DEBUG_LEVEL": "2"}  # the log states why each backend is off
    cpu_device.install()
    cpu_device.claim_gpu()
    te_extension.install(rank.workdir / "te")
    torch.cuda.device = contextlib.nullcontext
    torch.cuda.nvtx.range_push = torch.cuda.nvtx.range_pop = lambda *_: 0  # torch's CPU build has none
    import transformer_engine.pytorch as te
    import transformer_engine_torch as extension

    extension.get_fused_attn_backend = lambda *_, **__: extension.NVTE_Fused_Attn_Backend.NVTE_No_Backend
    tokens = [torch.zeros(2 * PADDED, HEADS, WIDTH, dtype=torch.bfloat16) for _ in range(3)]
    ends = torch.tensor([0, length, length + PADDED], dtype=torch.int32)
    padded = ends if same else torch.tensor([0, PADDED, 2 * PADDED], dtype=torch.int32)
    attention = te.DotProductAttention(HEADS, WIDTH, qkv_format="thd", attn_mask_type="padding_causal")
    try:
        attention(
            *cpu_device.as_cuda(*tokens),
            cu_seqlens_q=ends,
            cu_seqlens_kv=ends,
            cu_seqlens_q_padded=padded,
            cu_seqlens_kv_padded=padded,
            max_seqlen_q=PADDED,
            max_seqlen_kv=PADDED,
        )
    except te_extension.StandInError as error:
        return str(error)  # beyond the selection
    return "unfused"
