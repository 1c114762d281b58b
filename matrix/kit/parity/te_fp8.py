"""Transformer Engine's FP8, rounded or not: without rounding, layouts differ only where its Python is wrong.

Quantizers, tensors, caches, gathers and reductions of TE are real. Its kernels of a scale for each tensor are the
functions below. They scale, saturate and transpose as those of SM 9.0 do, and keep the result in float64: values of
half precision are rounded to FP8, wider ones are not. A product takes the transpose where that of SM 9.0 does, so that
a stale one shows. Source: csrc/quantizer.cpp, recipe and gemm of Transformer Engine 2.18.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Final

from matrix.kit import te_extension

# The places of a module's quantizers, in the order of csrc/common.h.
PLACES: Final = {
    "FP8FwdTensors": [f"GEMM{gemm}_{role}" for gemm in (1, 2, 3) for role in ("INPUT", "WEIGHT", "OUTPUT")],
    "FP8BwdTensors": [f"GRAD_{role}{gemm}" for gemm in (1, 2, 3) for role in ("OUTPUT", "INPUT")],
}
TYPES: Final = {"kFloat8E4M3": "float8_e4m3fn", "kFloat8E5M2": "float8_e5m2"}
HALF: Final = 2  # bytes


def quantize(tensor: Any, quantizer: Any, output: Any = None, noop: Any = None) -> Any:
    """Write a tensor to one of FP8, a new one without `output`; with `noop` 1 nothing is written."""
    if output is None:
        output = create(quantizer, tensor.shape, tensor.dtype)
    if noop is None or not bool(noop):
        _write(tensor, quantizer, output)
    return output


def create(quantizer: Any, shape: Sequence[int], dtype: Any, *_: Any) -> Any:
    """Return an empty tensor of a quantizer."""
    import torch
    from transformer_engine.pytorch.tensor.float8_tensor import Float8Tensor

    turned, wide = (shape[-1], *shape[:-1]), torch.float64
    data = torch.empty(tuple(shape), dtype=wide) if quantizer.rowwise_usage else None
    transpose = torch.empty(turned, dtype=wide) if quantizer.columnwise_usage else None
    options = {
        "data": data, "data_transpose": transpose, "fp8_scale_inv": torch.ones(1), "fp8_dtype": quantizer.dtype,
        "quantizer": quantizer,
    }  # fmt: skip
    if quantizer.internal:
        return Float8Tensor.__mro__[1](**options, fake_dtype=dtype)
    return Float8Tensor(shape=torch.Size(shape), dtype=dtype, **options)


def _write(tensor: Any, quantizer: Any, output: Any) -> None:
    import torch

    kind: Any = _type(quantizer.dtype)
    scale: Any = getattr(quantizer, "scale", None)
    largest = torch.finfo(kind).max
    amax = tensor.abs().max() if tensor.numel() else tensor.new_zeros(())
    if type(quantizer).__name__ == "Float8Quantizer":
        quantizer.amax.copy_(quantizer.amax.maximum(amax))
    elif type(quantizer).__name__ == "Float8CurrentScalingQuantizer":
        if quantizer.with_amax_reduction:
            group = quantizer.amax_reduction_group
            torch.distributed.all_reduce(amax, torch.distributed.ReduceOp.MAX, group=group)
        scale = _scale(amax, largest, quantizer.force_pow_2_scales, quantizer.amax_epsilon)
    else:
        raise te_extension.StandInError(f"the stand-in has no {type(quantizer).__name__}")
    data = (tensor.detach().double() * scale).clamp(-largest, largest)
    if tensor.element_size() == HALF:
        data = data.to(kind).double()
    output._scale_inv.copy_(scale.reciprocal().view(output._scale_inv.shape))
    output._data = _kept(output._data, data) if quantizer.rowwise_usage else None
    turned = data.reshape(-1, data.shape[-1]).T.reshape(data.shape[-1], *data.shape[:-1])
    output._transpose = _kept(output._transpose, turned) if quantizer.columnwise_usage else None
    output._transpose_invalid = not quantizer.columnwise_usage


def _kept(buffer: Any, values: Any) -> Any:
    """Return a buffer with these values: another one where there is none."""
    return values.contiguous() if buffer is None else buffer.copy_(values.view(buffer.shape))


def _scale(amax: Any, largest: float, power_of_2: bool, epsilon: float) -> Any:
    amax = amax.clamp(min=epsilon)
    scale = largest / amax if amax > 0 else amax.new_ones(amax.shape)
    return scale.log2().floor().exp2() if power_of_2 else scale


def compute_amax(tensor: Any, amax: Any) -> None:
    """Write the largest absolute value of a tensor."""
    amax.copy_(tensor.abs().max())


def multi_tensor_compute_scale_and_scale_inv(
    _: int, __: Any, lists: Sequence[Sequence[Any]], largest: float, power_of_2: bool, epsilon: float
) -> None:
    """Write the scales of amaxes, and their inverses."""
    for amax, scale, inverse in zip(*lists, strict=True):
        scale.copy_(_scale(amax, largest, power_of_2, epsilon))
        inverse.copy_(scale.reciprocal())


def _type(dtype: Any) -> Any:
    """Return torch's type of FP8 that a type of TE is."""
    import torch
    import transformer_engine_torch as extension

    return next(getattr(torch, name) for te, name in TYPES.items() if int(getattr(extension.DType, te)) == int(dtype))


def operand(tensor: Any, rowwise: bool) -> Any:
    """Return a factor of a product as a matrix: of FP8 from its data or from the transpose, as SM 9.0 takes them."""
    if not hasattr(tensor, "_scale_inv"):
        return tensor.reshape(-1, tensor.shape[-1])
    if rowwise:
        return (tensor._data * tensor._scale_inv).reshape(-1, tensor._data.shape[-1])
    if tensor._transpose is None:
        raise RuntimeError("a factor of a product is missing column-wise usage")
    return (tensor._transpose * tensor._scale_inv).reshape(tensor._transpose.shape[0], -1).T


def named(dtype: Any) -> Any:
    """Return torch's name of a type of TE; of two the later, which a rank has in half precision."""
    from transformer_engine.pytorch.constants import TE_DType

    return {te: ours for ours, te in TE_DType.items()}[dtype]


def dequantize(tensor: Any, dtype: Any) -> Any:
    """Return the values of a tensor of FP8."""
    return (tensor._data * tensor._scale_inv).to(named(dtype))


def fp8_transpose(data: Any, _: Any, *, out: Any = None) -> Any:
    """Return the transpose of data, the last dimension first."""
    return _kept(out, data.reshape(-1, data.shape[-1]).T.reshape(data.shape[-1], *data.shape[:-1]))


def bgrad_quantize(gradient: Any, quantizer: Any) -> tuple[Any, Any]:
    """Return the gradient of a bias, and the quantized gradient."""
    return gradient.reshape(-1, gradient.shape[-1]).sum(0), quantize(gradient, quantizer)


def split_quantize(tensor: Any, splits: Sequence[int], quantizers: Sequence[Any], *_: Any, **__: Any) -> list[Any]:
    """Return the quantized parts of a tensor, one for each quantizer."""
    return [quantize(part, quantizer) for part, quantizer in zip(tensor.split(splits), quantizers, strict=True)]


def fused_multi_row_padding(tensor: Any, out: Any, splits: Sequence[int], padded: Sequence[int]) -> None:
    """Write the rows of each part to a part of `out` of another number of rows; the rest is zero."""
    out.zero_()
    for rows, target in zip(tensor.split(list(splits)), out.split(list(padded)), strict=True):
        least = min(len(rows), len(target))
        target[:least] = rows[:least]


def fused_amax_and_scale_update_after_reduction(
    reduced: Any, histories: Sequence[Any], scales: Sequence[Any], algorithm: str, dtype: Any, margin: float
) -> None:
    """Move each history [length, tensors] on by one amax, and set the scales [tensors] from it."""
    import torch

    largest, counts = torch.finfo(_type(dtype)).max * 2.0**-margin, [history.shape[1] for history in histories]
    for amax, history, scale in zip(reduced.split(counts), histories, scales, strict=True):
        last = torch.where(amax != 0, amax, history[0])
        rolled = torch.cat([history[1:], last[None]])
        chosen = last if algorithm == "most_recent" else torch.where(last != 0, rolled.amax(0), last)
        rolled[0] = 0
        history.copy_(torch.where(last != 0, rolled, history))
        scale.copy_(torch.where(chosen > 0, largest / chosen, scale))


KERNELS: Final[dict[str, Any]] = {
    "fused_multi_row_unpadding": fused_multi_row_padding,
    "create_empty_quantized_tensor": create,
    **{name: IntEnum(name, places, start=0) for name, places in PLACES.items()},
} | {
    kernel.__name__: kernel
    for kernel in (
        quantize,
        dequantize,
        fp8_transpose,
        bgrad_quantize,
        split_quantize,
        compute_amax,
        multi_tensor_compute_scale_and_scale_inv,
        fused_multi_row_padding,
        fused_amax_and_scale_update_after_reduction,
    )
}
