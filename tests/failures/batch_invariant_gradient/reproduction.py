"""Add up the weight gradient of micro-batches as Transformer Engine's Linear does, in batch-invariant mode."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from matrix.kit import cpu_device, megatron

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

TF32 = 2e-2  # the largest error of a sum of four products of about 1, with mantissas of 10 bits, as on GPUs


class GradientLost(AssertionError):
    """main_grad has the gradient of the last micro-batch alone."""


class GradientWrong(AssertionError):
    """main_grad is wrong in another way."""


def accumulate(rank: Rank, *, micro_batches: int, fused: bool = True) -> int:
    """Pass each micro-batch to the general_gemm that the mode puts into Transformer Engine's Linear.

    Upstream's function, its arguments and layouts are real; without a GPU, torch's matmul replaces the Triton kernel
    below it. Without the fusion (not `fused`) each gradient is returned, and added as megatron-core's hook does.
    """
    torch = megatron.start(rank)
    from megatron.core.transformer.custom_layers import batch_invariant_kernels as kernels

    device = megatron.device(rank)
    if rank.device == "cpu":
        kernels.matmul_persistent = lambda one, other, bias=None: one @ other
    kernels._te_patch_for_batch_invariant()
    from transformer_engine.pytorch.module import linear

    made = [(torch.randn(4, 3, device=device), torch.randn(4, 5, device=device)) for _ in range(micro_batches)]
    main_grad = torch.zeros(5, 3, device=device)
    into = {"out": main_grad, "accumulate": True} if fused else {}
    for given, gradient in made:
        tensors = cpu_device.as_cuda(given, gradient) if rank.device == "cpu" else [given, gradient]
        computed, *_ = linear.general_gemm(*tensors, out_dtype=main_grad.dtype, layout="NT", grad=True, **into)
        if not fused:
            main_grad.add_(computed)
    each = torch.stack([gradient.T @ given for given, gradient in made])
    megatron.stop()
    close = partial(torch.allclose, main_grad, atol=1e-5 if rank.device == "cpu" else TF32)
    if close(each.sum(0)):
        return micro_batches
    if close(each[-1]):
        raise GradientLost(f"of {micro_batches} micro-batches, the last one's gradient remains")
    raise GradientWrong(f"{main_grad.tolist()} instead of {each.sum(0).tolist()}")
