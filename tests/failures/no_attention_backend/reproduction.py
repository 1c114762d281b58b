"""Pass packed sequences, with latent attention or offsets of padding, to Transformer Engine's DotProductAttention.

Transformer Engine's Python is real: its forward pass and its selection of a backend. Stand-ins are the compiled
extension, which answers that cuDNN has no kernel, as that of a real machine does for such inputs, and the GPU (9.0).
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from matrix.kit import cpu_device, te_extension

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

TOKENS = 8  # of two sequences
HEADS = 2
QK, V = 192, 128  # head dimensions of DeepSeek-V3's latent attention


def forward(rank: Rank, *, packed: bool) -> str:
    """Run the forward pass up to the backend; return which one is reached. Raises what Transformer Engine raises."""
    te = start(rank)
    import torch

    attention = te.DotProductAttention(
        HEADS,
        (QK, V),
        qkv_format="thd" if packed else "sbhd",
        attn_mask_type="padding_causal" if packed else "causal",
    )
    return reached(attention, inputs(torch, packed), lengths(torch) if packed else {})


def select(rank: Rank, *, length: int, same: bool = False) -> str:
    """Do the same for two packed sequences with equal heads, the first of `length` tokens before its padding.

    `same`: the offsets with padding are the very tensor of those without.
    """
    te = start(rank)
    import torch

    half = TOKENS // 2
    ends = torch.tensor([0, length, length + half], dtype=torch.int32)
    padded = ends if same else torch.tensor([0, half, TOKENS], dtype=torch.int32)
    offsets = {"cu_seqlens_q": ends, "cu_seqlens_kv": ends, "max_seqlen_q": half, "max_seqlen_kv": half}
    offsets |= {"cu_seqlens_q_padded": padded, "cu_seqlens_kv_padded": padded}
    tokens = [torch.zeros(TOKENS, HEADS, V, dtype=torch.bfloat16) for _ in range(3)]
    attention = te.DotProductAttention(HEADS, V, qkv_format="thd", attn_mask_type="padding_causal")
    return reached(attention, tokens, offsets)


def start(rank: Rank) -> Any:
    """Import Transformer Engine with its stand-ins, of which cuDNN has no kernel; return it."""
    import torch

    cpu_device.install()
    cpu_device.claim_gpu()
    te_extension.install(rank.workdir / "te")
    torch.cuda.device = contextlib.nullcontext  # TE 2.6 enters it with the device of its inputs
    torch.cuda.nvtx.range_push = torch.cuda.nvtx.range_pop = lambda *_: 0  # torch's CPU build has none
    import transformer_engine.pytorch as te
    import transformer_engine_torch as extension

    extension.get_fused_attn_backend = lambda *_, **__: extension.NVTE_Fused_Attn_Backend.NVTE_No_Backend
    return te


def reached(attention: Any, tokens: list[Any], options: dict[str, Any]) -> str:
    """Return the backend that a forward pass reaches."""
    try:
        attention(*cpu_device.as_cuda(*tokens), **options)
    except te_extension.StandInError as error:
        return str(error)  # beyond the selection
    return "unfused"


def inputs(torch: Any, packed: bool) -> list[Any]:
    """Return query, key and value: [tokens, heads, dimension], or [tokens, 1, heads, dimension]."""
    shape = (TOKENS, HEADS) if packed else (TOKENS, 1, HEADS)
    return [torch.zeros(*shape, dimension, dtype=torch.bfloat16) for dimension in (QK, QK, V)]


def lengths(torch: Any) -> dict[str, Any]:
    """Return where the sequences begin and end, int32, and the longest one."""
    ends = torch.tensor([0, TOKENS // 2, TOKENS], dtype=torch.int32)
    longest = TOKENS // 2
    return {"cu_seqlens_q": ends, "cu_seqlens_kv": ends, "max_seqlen_q": longest, "max_seqlen_kv": longest}
