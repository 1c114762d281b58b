"""Attend over packed sequences with padding between them, and compare with each sequence by itself.

Transformer Engine's Python is real: its selection of a backend and its unfused attention. Stand-ins are the GPU, the
compiled extension, which answers that cuDNN has no kernel, as the library does for packed sequences below compute
capability 9.0, and two of its kernels, which copy the tokens that their offsets name (kv_cache.cu).
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from matrix.kit import cpu_device, te_extension

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

PADDED = 4  # tokens of each of two sequences, with their padding
HEADS, WIDTH = 2, 16
NO_BACKEND = "No dot product attention backend is available"


class TokensLost(AssertionError):
    """The output has not a row for each token, or a sequence was not attended by itself."""


def attend(rank: Rank, *, length: int) -> str:
    """Return how two sequences were attended whose first one has `length` tokens. Raises TokensLost."""
    import torch

    cpu_device.install()
    cpu_device.claim_gpu()
    te_extension.install(rank.workdir / "te")
    torch.cuda.device = contextlib.nullcontext
    torch.cuda.nvtx.range_push = torch.cuda.nvtx.range_pop = lambda *_: 0  # torch's CPU build has none
    import transformer_engine.pytorch as te
    import transformer_engine_torch as extension

    extension.get_fused_attn_backend = lambda *_, **__: extension.NVTE_Fused_Attn_Backend.NVTE_No_Backend
    extension.convert_thd_to_bshd, extension.convert_bshd_to_thd = unpack, pack
    move = torch.Tensor.to
    torch.Tensor.to = lambda self, *place, **named: move(self, *place, **({**named, "device": "cpu"} if named else {}))
    torch.manual_seed(1)
    tokens = [torch.randn(2 * PADDED, HEADS, WIDTH).bfloat16() for _ in range(3)]
    ends = torch.tensor([0, length, length + PADDED], dtype=torch.int32)
    padded = torch.tensor([0, PADDED, 2 * PADDED], dtype=torch.int32)
    attention = te.DotProductAttention(HEADS, WIDTH, qkv_format="thd", attn_mask_type="padding_causal")
    try:
        attended = attention(
            *cpu_device.as_cuda(*tokens),
            cu_seqlens_q=ends,
            cu_seqlens_kv=ends,
            cu_seqlens_q_padded=padded,
            cu_seqlens_kv_padded=padded,
            max_seqlen_q=PADDED,
            max_seqlen_kv=PADDED,
            pad_between_seqs=length < PADDED,
        )
    except ValueError as error:
        if NO_BACKEND in str(error):
            return "refused"  # which is what a backend must do that does not know the offsets
        raise
    if len(attended) != 2 * PADDED:
        raise TokensLost(f"the output has {len(attended)} of {2 * PADDED} tokens")
    deviating = [
        start
        for start, tokens_of in ((0, length), (PADDED, PADDED))
        if not torch.allclose(
            attended[start : start + tokens_of].reshape(tokens_of, HEADS, WIDTH).float(),
            causal(*(part[start : start + tokens_of].float() for part in tokens)),
            atol=0.05,
        )
    ]
    if deviating:
        raise TokensLost(f"the sequences at {deviating} of {padded.tolist()} are not attended by themselves")
    return "attended"


def causal(query: Any, key: Any, value: Any) -> Any:
    """Return the causal attention of one sequence: [tokens, heads, dimension]."""
    import torch

    parts = [part.transpose(0, 1) for part in (query, key, value)]
    return torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=True).transpose(0, 1)


def unpack(packed: Any, ends: Any, count: int, longest: int) -> Any:
    """Return [sequences, longest, heads, dimension] of packed tokens: the kernel convert_thd_to_bshd."""
    padded = packed.new_zeros(count, longest, *packed.shape[1:])
    for row, (start, end) in enumerate(zip(ends.tolist(), ends.tolist()[1:], strict=False)):
        padded[row, : end - start] = packed[start:end]
    return padded


def pack(padded: Any, ends: Any, total: int) -> Any:
    """Return packed tokens of [sequences, longest, heads, dimension]: the kernel convert_bshd_to_thd."""
    packed = padded.new_zeros(total, *padded.shape[2:])
    for row, (start, end) in enumerate(zip(ends.tolist(), ends.tolist()[1:], strict=False)):
        packed[start:end] = padded[row, : end - start]
    return packed
