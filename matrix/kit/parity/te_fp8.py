"""Transformer Engine's FP8, rounded or not: without rounding, layouts differ only where its Python is wrong.

Quantizers, tensors, caches, gathers and reductions of TE are real. Its kernels are the functions below, with a scale
for each tensor or block. They scale, saturate and transpose as those of SM 9.0 do, and keep the result in float64:
values of half precision are rounded to FP8, wider ones are not. A product takes the transpose where that of SM 9.0
does, so that a stale one shows. Source: csrc/quantizer.cpp, recipe and gemm of Transformer Engine 2.18.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, Final, TypeVar

from matrix.kit import te_extension

# The places of a module's quantizers, in the order of csrc/common.h.
PLACES: Final = {
    "FP8FwdTensors": [f"GEMM{gemm}_{role}" for gemm in (1, 2, 3) for role in ("INPUT", "WEIGHT", "OUTPUT")],
    "FP8BwdTensors": [f"GRAD_{role}{gemm}" for gemm in (1, 2, 3) for role in ("OUTPUT", "INPUT")],
}
TYPES: Final = {"kFloat8E4M3": "float8_e4m3fn", "kFloat8E5M2": "float8_e5m2"}
HALF: Final = 2  # bytes
BLOCKS: Final = "Float8BlockQuantizer"
BLOCK: Final = 128  # values that share a scale, of a row, or of a square's side
SQUARE: Final = 2  # the dimensions of a block
# What the extension has, by name: the functions below and those of te_kernels.
KERNELS: Final[dict[str, Any]] = {name: IntEnum(name, places, start=0) for name, places in PLACES.items()}
Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function) -> Function:
    """Enter a function in KERNELS."""
    KERNELS[function.__name__] = function
    return function


@kernel
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
    from transformer_engine.pytorch import tensor

    data = torch.empty(tuple(shape), dtype=torch.float64) if quantizer.rowwise_usage else None
    transpose = torch.empty((shape[-1], *shape[:-1]), dtype=torch.float64) if quantizer.columnwise_usage else None
    options = {"fp8_dtype": quantizer.dtype, "quantizer": quantizer}
    if type(quantizer).__name__ == BLOCKS:
        kind = tensor.float8_blockwise_tensor.Float8BlockwiseQTensor
        if not hasattr(kind, "get_usages") or hasattr(quantizer, "all_gather_usage"):
            raise te_extension.StandInError("the stand-in has FP8 in blocks from Transformer Engine 2.12 on")
        options |= {"rowwise_data": data, "columnwise_data": transpose}
        for name, used in (("rowwise", quantizer.rowwise_usage), ("columnwise", quantizer.columnwise_usage)):
            scales = quantizer.get_scale_shape(shape, name == "columnwise")
            options[f"{name}_scale_inv"] = torch.empty(scales) if used else None
        options["is_2D_scaled"] = quantizer.block_scaling_dim == SQUARE
    else:
        kind = tensor.float8_tensor.Float8Tensor
        options |= {"data": data, "data_transpose": transpose, "fp8_scale_inv": torch.ones(1)}
    if quantizer.internal:
        return kind.__mro__[1](**options, fake_dtype=dtype)
    return kind(shape=torch.Size(shape), dtype=dtype, **options)


def _write(tensor: Any, quantizer: Any, output: Any) -> None:
    values, rounded = tensor.detach().double(), tensor.element_size() == HALF
    if type(quantizer).__name__ == BLOCKS:
        _write_blocks(values, quantizer, output, rounded=rounded)
        return
    scale = _scale_of(values, quantizer)
    data = _limited(values * scale, quantizer, rounded=rounded)
    output._scale_inv.copy_(scale.reciprocal().view(output._scale_inv.shape))
    output._data = _kept(output._data, data if quantizer.rowwise_usage else None)
    output._transpose = _kept(output._transpose, turned(data) if quantizer.columnwise_usage else None)
    output._transpose_invalid = not quantizer.columnwise_usage


def _write_blocks(values: Any, quantizer: Any, output: Any, *, rounded: bool) -> None:
    matrix, whole = values.reshape(-1, values.shape[-1]), (None, None)
    data, scales = _blocks(matrix, quantizer, rounded=rounded) if quantizer.rowwise_usage else whole
    output._rowwise_data, output._rowwise_scale_inv = _kept(output._rowwise_data, data, values.shape), scales
    data, scales = _blocks(matrix.T, quantizer, rounded=rounded) if quantizer.columnwise_usage else whole
    output._columnwise_data = _kept(output._columnwise_data, data, turned(values).shape)
    output._columnwise_scale_inv = scales


def _scale_of(values: Any, quantizer: Any) -> Any:
    """Return the scale of a whole tensor; of delayed scaling the given one, where the largest value is noted."""
    import torch

    amax = values.abs().max() if values.numel() else values.new_zeros(())
    if type(quantizer).__name__ == "Float8Quantizer":
        quantizer.amax.copy_(quantizer.amax.maximum(amax))
        return quantizer.scale
    if type(quantizer).__name__ != "Float8CurrentScalingQuantizer":
        raise te_extension.StandInError(f"the stand-in has no {type(quantizer).__name__}")
    if quantizer.with_amax_reduction:
        torch.distributed.all_reduce(amax, torch.distributed.ReduceOp.MAX, group=quantizer.amax_reduction_group)
    return _scale(amax, _largest(quantizer.dtype), quantizer.force_pow_2_scales, quantizer.amax_epsilon)


def _limited(scaled: Any, quantizer: Any, *, rounded: bool) -> Any:
    """Return scaled values within the range of FP8, rounded to it or not."""
    largest = _largest(quantizer.dtype)
    data = scaled.clamp(-largest, largest)
    return data.to(_type(quantizer.dtype)).double() if rounded else data


def _blocks(matrix: Any, quantizer: Any, *, rounded: bool) -> tuple[Any, Any]:
    """Return a matrix with scales for 128 of a row, or for 128 x 128, and the inverses as a product takes them."""
    import torch

    square, (count, width) = quantizer.block_scaling_dim == SQUARE, matrix.shape
    height = BLOCK if square else 1
    padded = torch.nn.functional.pad(matrix, (0, -width % BLOCK, 0, -count % height))
    tiles = padded.view(padded.shape[0] // height, height, padded.shape[1] // BLOCK, BLOCK)
    scale = _scale(
        tiles.abs().amax((1, 3)), _largest(quantizer.dtype), quantizer.force_pow_2_scales, quantizer.amax_epsilon
    )
    data = _limited(tiles * scale[:, None, :, None], quantizer, rounded=rounded).view(padded.shape)[:count, :width]
    inverse = scale.reciprocal() if square else scale.reciprocal().T
    return data, torch.nn.functional.pad(inverse, (0, -inverse.shape[1] % 4))


def _unblocked(matrix: Any, inverse: Any, *, square: bool) -> Any:
    """Return the values of a matrix with scales for blocks."""
    scales, height = inverse if square else inverse.T, BLOCK if square else 1
    spread = scales.repeat_interleave(height, 0).repeat_interleave(BLOCK, 1)
    return matrix * spread[: matrix.shape[0], : matrix.shape[1]]


def _kept(buffer: Any, values: Any, shape: Any = None) -> Any:
    """Return a buffer with these values, another one where there is none; None without values."""
    if values is None:
        return None
    values = values.reshape(shape or values.shape)
    return values.contiguous() if buffer is None else buffer.copy_(values.view(buffer.shape))


def _scale(amax: Any, largest: float, power_of_2: bool, epsilon: float) -> Any:
    amax = amax.clamp(min=epsilon)
    scale = (largest / amax).where(amax > 0, 1.0)
    return scale.log2().floor().exp2() if power_of_2 else scale


@kernel
def compute_amax(tensor: Any, amax: Any) -> None:
    """Write the largest absolute value of a tensor."""
    amax.copy_(tensor.abs().max())


@kernel
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


def _largest(dtype: Any) -> float:
    import torch

    return float(torch.finfo(_type(dtype)).max)


def operand(tensor: Any, rowwise: bool) -> Any:
    """Return a factor of a product as a matrix: of FP8 from its data or from the transpose, as SM 9.0 takes them."""
    blocks = hasattr(tensor, "_rowwise_data")
    if not blocks and not hasattr(tensor, "_scale_inv"):
        return tensor.reshape(-1, tensor.shape[-1])
    names = ("_rowwise_data", "_columnwise_data") if blocks else ("_data", "_transpose")
    data = getattr(tensor, names[0 if rowwise else 1])
    if data is None:
        raise RuntimeError(f"a factor of a product is missing {'row' if rowwise else 'column'}-wise usage")
    matrix = data.reshape(-1, data.shape[-1]) if rowwise else data.reshape(data.shape[0], -1)
    if blocks:
        inverse = tensor._rowwise_scale_inv if rowwise else tensor._columnwise_scale_inv
        matrix = _unblocked(matrix, inverse, square=tensor._is_2D_scaled)
    else:
        matrix = matrix * tensor._scale_inv
    return matrix if rowwise else matrix.T


def turned(data: Any) -> Any:
    """Return the transpose of data, the last dimension first."""
    return data.reshape(-1, data.shape[-1]).T.reshape(data.shape[-1], *data.shape[:-1])


def named(dtype: Any) -> Any:
    """Return torch's name of a type of TE; of two the later, which a rank has in half precision."""
    from transformer_engine.pytorch.constants import TE_DType

    return {te: ours for ours, te in TE_DType.items()}[dtype]


@kernel
def dequantize(tensor: Any, dtype: Any) -> Any:
    """Return the values of a tensor of FP8."""
    return (tensor._data * tensor._scale_inv).to(named(dtype))


@kernel
def fp8_transpose(data: Any, _: Any, *, out: Any = None) -> Any:
    """Return the transpose of data, in `out` where there is one."""
    return _kept(out, turned(data))


@kernel
def swap_first_dims(tensor: Any, *, out: Any = None) -> Any:
    """Return a tensor with its first two dimensions exchanged, in `out` where there is one."""
    return _kept(out, tensor.transpose(0, 1))


@kernel
def bgrad_quantize(gradient: Any, quantizer: Any) -> tuple[Any, Any]:
    """Return the gradient of a bias, and the quantized gradient."""
    return gradient.reshape(-1, gradient.shape[-1]).sum(0), quantize(gradient, quantizer)


@kernel
def split_quantize(tensor: Any, splits: Sequence[int], quantizers: Sequence[Any], *_: Any, **__: Any) -> list[Any]:
    """Return the quantized parts of a tensor, one for each quantizer."""
    return [quantize(part, quantizer) for part, quantizer in zip(tensor.split(splits), quantizers, strict=True)]


@kernel
def fused_multi_quantize(tensors: Sequence[Any], _: Any, quantizers: Sequence[Any], __: Any) -> list[Any]:
    """Return the quantized tensors, as TE up to 2.5 asks for."""
    return [quantize(tensor, quantizer) for tensor, quantizer in zip(tensors, quantizers, strict=True)]


@kernel
def fused_multi_row_padding(tensor: Any, out: Any, splits: Sequence[int], padded: Sequence[int]) -> None:
    """Write the rows of each part to a part of `out` of another number of rows; the rest is zero."""
    out.zero_()
    for rows, target in zip(tensor.split(list(splits)), out.split(list(padded)), strict=True):
        least = min(len(rows), len(target))
        target[:least] = rows[:least]


@kernel
def fused_amax_and_scale_update_after_reduction(
    reduced: Any, histories: Sequence[Any], scales: Sequence[Any], algorithm: str, dtype: Any, margin: float
) -> None:
    """Move each history [length, tensors] on by one amax, and set the scales [tensors] from it."""
    import torch

    largest, counts = _largest(dtype) * 2.0**-margin, [history.shape[1] for history in histories]
    for amax, history, scale in zip(reduced.split(counts), histories, scales, strict=True):
        last = torch.where(amax != 0, amax, history[0])
        rolled = torch.cat([history[1:], last[None]])
        chosen = last if algorithm == "most_recent" else torch.where(last != 0, rolled.amax(0), last)
        rolled[0] = 0
        history.copy_(torch.where(last != 0, rolled, history))
        scale.copy_(torch.where(chosen > 0, largest / chosen, scale))


KERNELS.update(create_empty_quantized_tensor=create, fused_multi_row_unpadding=fused_multi_row_padding)
