"""Transformer Engine's kernels as torch computes them, so that its modules train on the CPU.

TE's Python is real: modules, reductions and gathers, context parallelism, autograd functions, optimizers, the choice of
an attention. What it calls in its compiled extension (2.1 and later) is one of the functions below, with the same
arguments, and of FP8 what te_fp8 has; without a fused activation. Two functions are replaced in TE's Python, since
their arguments have names there: fused_attn_fwd and fused_attn_bwd. TE chooses them as on a GPU of SM 9.0 in float16.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from matrix.kit import cpu_device, te_extension
from matrix.kit.parity import te_fp8
from matrix.kit.parity.te_fp8 import KERNELS, kernel

TE: Final = "transformer_engine.pytorch"
CUDA: Final = "12.9"  # from here on TE has FP8 in blocks on SM 9.0
BACKEND: Final = "F16_arbitrary_seqlen"


def install(folder: Path) -> None:
    """Make the transformer_engine on sys.path importable and computing; `folder` is a new one of this process."""
    import torch

    stream = torch.cuda.Stream
    te_extension.install(folder, {"get_num_cublas_streams": 1, "get_cublasLt_version": 130_000}, KERNELS)
    torch.cuda.Stream = torch.cuda.Event = stream
    cpu_device.claim_gpu()
    torch.version.cuda = torch.version.cuda or CUDA
    torch.Tensor.is_cuda = property(lambda tensor: True)
    torch.Tensor.is_cpu = property(lambda _: not sys._getframe(1).f_globals["__name__"].startswith(TE))
    torch.cuda.get_device_capability = lambda device=None: (9, 0)
    torch.cuda.device = contextlib.nullcontext
    batch = torch.distributed.batch_isend_irecv
    torch.distributed._coalescing_manager = _one_by_one(torch.distributed._coalescing_manager)
    torch.distributed.batch_isend_irecv = lambda operations: [_OneWait(work) for work in batch(operations)]
    _replace_attention()
    _replace_bytes()


def _one_by_one(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return torch's context of collectives that are one for a device, where each is made by itself: gloo has none."""
    done = contextlib.nullcontext(types.SimpleNamespace(wait=lambda: None))
    return lambda group=None, device=None, async_ops=False: done if device else original(group, None, async_ops)


def _replace_bytes() -> None:
    """Let FP8 have float64 for bytes, and TE's recomputation, which it alone has, the random state of the CPU."""
    import torch
    from transformer_engine.pytorch import distributed

    for home in (f"{TE}.tensor", f"{TE}.distributed"):
        widen(home, "uint8")
    _replace(distributed, "_get_cuda_rng_state", lambda *_, **__: torch.get_rng_state())
    _replace(distributed, "_set_cuda_rng_state", lambda state, *_, **__: torch.set_rng_state(state))


def widen(home: str, *names: str) -> None:
    """Let types of torch be float64 in the modules whose names begin with a text."""
    for name, module in [*sys.modules.items()]:
        if name.startswith(home) and hasattr(module, "torch"):
            vars(module)["torch"] = _Wider(*names)


class _OneWait:
    """A transfer that may be waited for again, as attention with context parallelism does; gloo's waits for ever."""

    def __init__(self, work: Any) -> None:
        self.wait = functools.cache(work.wait)


def _replace_attention() -> None:
    """Replace fused attention and the choice of a device; TE's attention reads float64 as float16."""
    import torch
    from transformer_engine.pytorch import utils
    from transformer_engine.pytorch.cpp_extensions import fused_attn

    extension: Any = sys.modules[te_extension.EXTENSION]
    extension.get_fused_attn_backend = lambda *_, **__: fused_attn.FusedAttnBackend[BACKEND]
    widen(f"{TE}.attention", "float16", "half")
    _replace(utils, "canonicalize_device", lambda device: torch.device("cpu"))
    kernels: dict[str, Callable[..., Any]] = {"fused_attn_fwd": attention, "fused_attn_bwd": attention_backward}
    for name, function in kernels.items():
        _replace(fused_attn, name, _named(inspect.signature(getattr(fused_attn, name)), function))


def _replace(home: types.ModuleType, name: str, replacement: Any) -> None:
    """Replace a function of a module wherever it has been imported."""
    original = getattr(home, name)
    for module in [*sys.modules.values()]:
        if getattr(module, "__dict__", {}).get(name) is original:
            setattr(module, name, replacement)


class _Wider(types.ModuleType):
    """torch, in which some types are float64."""

    def __init__(self, *names: str) -> None:
        super().__init__("torch")
        self._names = names

    def __getattr__(self, name: str) -> Any:
        import torch

        return getattr(torch, "float64" if name in self._names else name)


def _named(signature: inspect.Signature, kernel: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **keywords: Any) -> Any:
        bound = signature.bind(*arguments, **keywords)
        bound.apply_defaults()
        return kernel(**bound.arguments)

    return call


@kernel
def generic_gemm(
    a: Any, a_transposed: bool, b: Any, b_transposed: bool, out: Any, quantizer: Any, *options: Any, **scale: Any
) -> tuple[Any, Any, None, None]:
    """Return the product of rows, b * a, and the gradient of a bias; `options` begins with dtype and bias."""
    dtype, bias, _, gelu, _, grad, _, _, accumulate, *_ = options
    _plain(gelu)
    has_bias = bias is not None and bias.numel() > 0
    product = scale.get("alpha", 1.0) * _product(a, a_transposed, b, b_transposed) + (
        bias if has_bias and not grad else 0
    )
    if dtype is not None:
        product = product.to(te_fp8.named(dtype))
    if not b_transposed:
        product = product.view(*b.size()[:-1], -1)
    return _written(product, out, accumulate, quantizer), rows(b).sum(0) if has_bias and grad else None, None, None


@kernel
def te_general_grouped_gemm(
    a: list[Any], a_transposed: bool, b: list[Any], b_transposed: bool, out: list[Any], *options: Any
) -> list[Any] | None:
    """Write the products of each expert to `out`, or to its parts; with `grad` also the gradients of biases."""
    _, splits, biases, _, single, _, grad, _, _, accumulate, *_ = options
    outputs = out[0].split(splits) if single else out
    for weights, values, output, bias in zip(a, b, outputs, biases, strict=True):
        product = _product(weights, a_transposed, values, b_transposed)
        _written(product + bias if bias.numel() and not grad else product, output, accumulate)
        if bias.numel() and grad:
            bias.copy_(rows(values).sum(0))
    return biases if grad else None


def _plain(*unused: Any) -> None:
    if any(unused):
        raise te_extension.StandInError("the stand-in has no fused activation, and of attention the plain one alone")


def rows(tensor: Any) -> Any:
    """Return a tensor as a matrix."""
    return tensor.reshape(-1, tensor.shape[-1])


def _product(a: Any, a_transposed: bool, b: Any, b_transposed: bool) -> Any:
    a, b = te_fp8.operand(a, a_transposed), te_fp8.operand(b, not b_transposed)
    return (b.T if b_transposed else b) @ (a.T if a_transposed else a)


def _written(values: Any, out: Any, accumulate: bool = False, quantizer: Any = None) -> Any:
    if quantizer is not None:
        return te_fp8.quantize(values, quantizer, out)
    if out is None:
        return values
    return out.add_(values.view(out.shape)) if accumulate else out.copy_(values.view(out.shape))


@kernel
def layernorm_fwd(
    values: Any, weight: Any, bias: Any, eps: float, out: Any, quantizer: Any, _: Any, __: int, centered: bool
) -> tuple[Any, Any, Any]:
    """Return the layer norm of each row, its mean, and the inverse of its deviation."""
    mean = values.mean(-1)
    inverse = (values.var(-1, unbiased=False) + eps).rsqrt()
    normal = (values - mean[:, None]) * inverse[:, None]
    return _written(normal * (weight + centered) + bias, out, quantizer=quantizer), mean, inverse


@kernel
def rmsnorm_fwd(
    values: Any, weight: Any, eps: float, out: Any, quantizer: Any, _: Any, __: int, centered: bool
) -> tuple[Any, None, Any]:
    """Return the norm of each row by its root mean square, and the inverse of that."""
    inverse = (values.square().mean(-1) + eps).rsqrt()
    return _written(values * inverse[:, None] * (weight + centered), out, quantizer=quantizer), None, inverse


@kernel
def layernorm_bwd(
    gradient: Any, values: Any, mean: Any, inverse: Any, weight: Any, _: int, centered: bool
) -> tuple[Any, ...]:
    """Return the gradients of values, weight and bias."""
    scaled = gradient.view(values.shape) * (weight + centered)
    shift = scaled.mean(-1, keepdim=True)
    return _norm_gradients(gradient, scaled, (values - mean[:, None]) * inverse[:, None], inverse, shift)


@kernel
def rmsnorm_bwd(gradient: Any, values: Any, inverse: Any, weight: Any, _: int, centered: bool) -> tuple[Any, ...]:
    """Return the gradients of values and weight."""
    scaled = gradient.view(values.shape) * (weight + centered)
    return _norm_gradients(gradient, scaled, values * inverse[:, None], inverse, 0)[:2]


def _norm_gradients(gradient: Any, scaled: Any, normal: Any, inverse: Any, shift: Any) -> tuple[Any, ...]:
    gradient = gradient.view(normal.shape)
    inner = scaled - shift - normal * (scaled * normal).mean(-1, keepdim=True)
    return inner * inverse[:, None], (gradient * normal).sum(0), gradient.sum(0)


def attention(
    *, q: Any, k: Any, v: Any, attn_scale: float | None, qkv_layout: str, attn_mask_type: str, **options: Any
) -> tuple[Any, list[Any]]:
    """Return fused_attn_fwd's output, and the logarithm of each row's sum of exponentials with an idle state."""
    import torch

    _covered(qkv_layout, options)
    query, key, value = _heads(qkv_layout, q, k, v)
    scores = _scores(query, key, attn_scale, attn_mask_type)
    sink, columns = options.get("softmax_offset"), scores
    if options.get("softmax_type", "vanilla") != "vanilla":
        sink = torch.zeros(1, scores.shape[1], 1, 1) if sink is None else sink
        columns = torch.cat([scores, sink.expand(*scores.shape[:3], 1)], -1)
    total = columns.logsumexp(-1, keepdim=True)
    out = (scores - total).exp() @ value
    state = torch.zeros(2, dtype=torch.int64)
    return _back(qkv_layout, out), [total, state] if sink is None else [total, state, sink]


def attention_backward(
    *, q: Any, k: Any, v: Any, o: Any, d_o: Any, aux_ctx_tensors: Sequence[Any], qkv_layout: str, **options: Any
) -> list[Any]:
    """Return fused_attn_bwd's gradients of q, k, v, no bias, and the softmax offset.

    Under context parallelism output and total are those of all keys, k and v a part of them.
    """
    _covered(qkv_layout, options)
    query, key, value, out, gradient = _heads(qkv_layout, q, k, v, o.view(*q.shape[:3], -1), d_o.view(*q.shape[:3], -1))
    scale, total = options["attn_scale"] or q.shape[-1] ** -0.5, aux_ctx_tensors[0]
    weights = (_scores(query, key, scale, options["attn_mask_type"]) - total).exp()
    inner = (gradient * out).sum(-1, keepdim=True)
    errors = weights * (gradient @ value.transpose(-1, -2) - inner)
    sink = None
    if options.get("softmax_type", "vanilla") == "learnable":
        sink = -((aux_ctx_tensors[-1] - total).exp() * inner).sum((0, 2), keepdim=True)
    by_head = (scale * errors @ key, scale * errors.transpose(-1, -2) @ query, weights.transpose(-1, -2) @ gradient)
    grouped = (_summed(tensor, heads.shape[2]) for tensor, heads in zip(by_head, (q, k, v), strict=True))
    gradients = [*_packed(qkv_layout, [_back(qkv_layout, tensor) for tensor in grouped]), None]
    return [*gradients, sink] if "softmax_type" in options else gradients


def _covered(layout: str, options: dict[str, Any]) -> None:
    _plain(
        options.get("s_quantizer"), options["attn_bias_type"] != "no_bias", layout[0] not in "sb", options["dropout"]
    )
    _plain(options.get("window_size", (-1, -1)) not in ((-1, -1), (-1, 0)), options.get("return_max_logit"))


def _heads(layout: str, query: Any, *tensors: Any) -> Iterator[Any]:
    """Yield tensors as [samples, heads, positions, channels], each with the number of heads of the first."""
    for tensor in (query, *tensors):
        tensor = tensor.permute((1, 2, 0, 3) if layout[0] == "s" else (0, 2, 1, 3))
        yield tensor.repeat_interleave(query.shape[2] // tensor.shape[1], dim=1)


def _summed(tensor: Any, heads: int) -> Any:
    """Return the sums over the heads of each group."""
    return tensor.unflatten(1, (heads, -1)).sum(2)


def _packed(layout: str, tensors: Sequence[Any]) -> Iterator[Any]:
    """Yield tensors that lie in memory as the layout states, "bshd_bs2hd": TE takes the last two as one."""
    import torch

    separate = iter(tensors)
    for group in layout.split("_"):
        count = next((int(letter) for letter in group if letter.isdigit()), 1)
        dimension = group.index(str(count)) if count > 1 else 0
        yield from torch.stack([next(separate) for _ in range(count)], dimension).unbind(dimension)


def _back(layout: str, tensor: Any) -> Any:
    return tensor.permute((2, 0, 1, 3) if layout[0] == "s" else (0, 2, 1, 3)).contiguous()


def _scores(query: Any, key: Any, scale: float | None, mask: str) -> Any:
    import torch

    scores = query @ key.transpose(-1, -2) * (scale or query.shape[-1] ** -0.5)
    if mask not in ("causal", "no_mask", "causal_bottom_right"):
        raise te_extension.StandInError(f"the stand-in has no mask {mask}")
    if mask == "no_mask":
        return scores
    later = scores.shape[-1] - scores.shape[-2] if mask == "causal_bottom_right" else 0
    return scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1 + later), -torch.inf)


@kernel
def multi_tensor_scale(_: int, __: Any, lists: Sequence[Sequence[Any]], scale: float) -> None:
    """Write the scaled tensors of the first list to the second."""
    for tensor, output in zip(*lists, strict=True):
        output.copy_(tensor * scale)


@kernel
def multi_tensor_l2norm(_: int, __: Any, lists: Sequence[Sequence[Any]], each: bool = False) -> tuple[Any, Any]:
    """Return the norm of all tensors, and of each."""
    import torch

    norms = torch.stack([tensor.norm() for tensor in lists[0]])
    return norms.norm().view(1), norms if each else None


@kernel
def multi_tensor_adam(_: int, __: Any, lists: Sequence[Sequence[Any]], *options: Any) -> None:
    """Update parameters and both moments by one step of Adam."""
    rate, beta, beta2, eps, step, decoupled, corrected, decay = options
    scale, scale2 = (1 - beta**step, 1 - beta2**step) if corrected else (1, 1)
    for gradient, parameter, mean, square in zip(*lists, strict=True):
        decayed = gradient if decoupled else gradient + decay * parameter
        mean.lerp_(decayed, 1 - beta)
        square.lerp_(decayed * decayed, 1 - beta2)
        update = mean / scale / ((square / scale2).sqrt() + eps)
        parameter.sub_(rate * (update + decay * parameter if decoupled else update))


@kernel
def multi_tensor_sgd(_: int, __: Any, lists: Sequence[Sequence[Any]], *options: Any) -> None:
    """Update parameters and their momentum by one step of SGD."""
    decay, momentum, dampening, rate, nesterov, first_run, late, scale = options
    for gradient, parameter, mean in zip(*lists, strict=True):
        update = gradient * scale + (0 if late else decay * parameter)
        if momentum:
            mean.copy_(update if first_run else momentum * mean + (1 - dampening) * update)
            update = update + momentum * mean if nesterov else mean
        parameter.sub_(rate * (update + decay * parameter if late else update))


KERNELS.update(_num_cublas_streams=1, multi_tensor_scale_tensor=multi_tensor_scale)  # before 2.6; by a tensor
