"""What a rehearsal computes in place of Transformer Engine's kernels: the forward passes that a tiny GPT takes."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
import types
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

from matrix.kit import te_extension


def install() -> None:
    """Replace the forward passes of Transformer Engine's modules in this process. Parameters and arguments are TE's.

    Attention is causal within each rank: the exchange of context parallelism is one of TE's kernels.
    """
    import torch
    import transformer_engine.pytorch as te
    from transformer_engine.pytorch import attention as attentions
    from transformer_engine.pytorch import cpp_extensions

    # megatron-core then takes torch's optimizers; TE's are kernels.
    sys.modules["transformer_engine.pytorch.optimizers"] = None  # type: ignore[assignment]  # import raises ImportError
    functional = torch.nn.functional
    # Up to 1.13 the state of FP8 is in an object of the extension, which only holds it.
    sys.modules[te_extension.EXTENSION].FP8TensorMeta = types.SimpleNamespace  # type: ignore[attr-defined]

    def norm(module: Any, weight: Any, bias: Any, values: Any) -> Any:
        scale = weight + 1 if module.zero_centered_gamma else weight
        return functional.layer_norm(values, values.shape[-1:], scale, bias, module.eps)

    def linear(module: Any, values: Any, *_: Any, **__: Any) -> Any:
        weight = torch.cat([getattr(module, name) for name in module.weight_names])
        bias = torch.cat([getattr(module, name) for name in module.bias_names]) if module.use_bias else None
        before, after = exchanges(module)
        made = after(functional.linear(before(values), weight))
        made = made + bias if bias is not None and not module.return_bias else made
        return (made, bias) if module.return_bias else made

    def norm_and_linear(module: Any, values: Any, *_: Any, **__: Any) -> Any:
        return linear(module, norm(module, module.layer_norm_weight, module.layer_norm_bias, values))

    def attention(module: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> Any:
        # [tokens, samples, heads, channels] -> [samples, heads, tokens, channels] and back
        made = functional.scaled_dot_product_attention(
            *(each.permute(1, 2, 0, 3) for each in (query, key, value)), is_causal=True
        )
        return made.permute(2, 0, 1, 3).flatten(2)

    def rotary(values: Any, angles: Any, *_: Any) -> Any:
        first, second = values.chunk(2, -1)
        turned = torch.cat((-second, first), -1)
        return values * angles.cos().to(values.dtype) + turned * angles.sin().to(values.dtype)

    with contextlib.suppress(ImportError):  # TE >= 2.1
        attentions = importlib.import_module("transformer_engine.pytorch.attention.rope")
    attentions.FusedRoPEFunc.apply = rotary
    if hasattr(attentions, "_flash_attn_version_required"):  # TE before 2.1 compares it at each call
        attentions._flash_attn_version = attentions._flash_attn_version_required
    cpp_extensions.get_cudnn_version = lambda: 90100

    def product(one: Any, other: Any, *_: Any, layout: str = "TN", out_dtype: Any = None, **__: Any) -> tuple[Any, ...]:
        # As in cuBLAS, whose matrices have their columns one after another: the second operand is the left one.
        left, right = (other.T if layout[1] == "T" else other), (one.T if layout[0] == "T" else one)
        return (left @ right).to(out_dtype or other.dtype), None, None, None

    def extension(name: str) -> Any:
        # The module has the names that the extension lists, and the stand-in lists none; this one is of TE 2's Python.
        if name == "general_gemm":
            raise AttributeError(name)
        return getattr(sys.modules[te_extension.EXTENSION], name)

    cpp_extensions.__getattr__ = extension
    if "general_gemm" in vars(cpp_extensions):
        cpp_extensions.general_gemm = product
    te.LayerNorm.forward = lambda module, values: norm(module, module.weight, module.bias, values)
    te.Linear.forward = linear
    te.LayerNormLinear.forward = norm_and_linear
    te.DotProductAttention.forward = attention
    with contextlib.suppress(ImportError):  # TE >= 1.9
        grouped(importlib.import_module("transformer_engine.pytorch.module.grouped_linear")._GroupedLinear)
    triton()


def exchanges(module: Any) -> tuple[Any, Any]:
    """Return what a linear layer does with its input and its output between the ranks of its tensor parallelism."""

    def alone(values: Any) -> Any:
        return values

    if module.tp_size == 1 or module.parallel_mode not in ("column", "row"):
        return alone, alone
    from megatron.core.tensor_parallel import mappings

    if module.parallel_mode == "column":
        whole = mappings.gather_from_sequence_parallel_region
        return (whole if module.sequence_parallel else mappings.copy_to_tensor_model_parallel_region), alone
    parts = mappings.reduce_scatter_to_sequence_parallel_region
    return alone, (parts if module.sequence_parallel else mappings.reduce_from_tensor_model_parallel_region)


def grouped(function: Any) -> None:
    """Replace the products of GroupedLinear, whose own Python stays, and their gradients."""
    import torch

    linear = torch.nn.functional.linear
    has_workspaces = "out" in inspect.signature(function.forward).parameters  # TE 2.18

    def products(*arguments: Any) -> Any:
        values, splits, settings, *others = arguments[arguments[0] is None :]  # without gradients the context is None
        with_bias = settings[0] if isinstance(settings, tuple) else settings
        tensors = [each for each in others if isinstance(each, torch.Tensor)]
        weights = [each for each in tensors if each.dim() == 2]
        biases = [each for each in tensors if each.dim() == 1] if with_bias else [None] * len(weights)
        parts = values.split([int(size) for size in splits])
        output = torch.cat([linear(*of_expert) for of_expert in zip(parts, weights, biases, strict=True)])
        return (output, [None] * len(parts)) if has_workspaces else output

    function.apply = function.forward = products


def triton() -> None:
    """Replace the Triton kernels that a case runs, where this Transformer Engine and megatron-core have them."""
    import torch

    def permuted(values: Any, row_id_map: Any, *rest: Any) -> tuple[Any, None, None]:
        return values.new_zeros(rest[-3], values.shape[1]), None, None

    with contextlib.suppress(ImportError):
        kernels: Any = importlib.import_module("transformer_engine.pytorch.triton.permutation")
        kernels.make_row_id_map = lambda routing, *_: torch.zeros(routing.shape[0], 1, dtype=torch.int32)
        kernels.permute_with_mask_map = permuted
    # megatron-core is that of the overlay or of a clone, as the case decides when it imports it.
    product = {"matmul_persistent": lambda one, other, bias=None: one @ other}
    sys.meta_path.insert(0, AfterImport("megatron.core.transformer.custom_layers.batch_invariant_kernels", product))


class AfterImport(MetaPathFinder):
    """Replaces names of a module as soon as it is imported."""

    def __init__(self, module: str, names: Mapping[str, Any]) -> None:
        self._module, self._names = module, names

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        """Return the module's own spec, whose loader then replaces the names; None for other modules."""
        spec = PathFinder.find_spec(fullname, path) if fullname == self._module else None
        if spec and spec.loader:
            execute = spec.loader.exec_module

            def replaced(module: Any) -> None:
                execute(module)
                vars(module).update(self._names)

            setattr(spec.loader, "exec_module", replaced)  # noqa: B010
        return spec
