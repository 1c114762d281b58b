"""Two of upstream's local layers, replaced where the originals refuse what the comparison needs.

torch's norm, which upstream takes without apex, refuses sequence parallelism: its parameters lack the mark by which
finalize_model_grads sums their gradients. Upstream's DotProductAttention refuses context parallelism and, in most
releases, latent attention: both have it from Transformer Engine alone, whose kernels no CPU runs. `decoder` and `mtp`
return the specs of a stage with them.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from collections.abc import Callable
from typing import Any, Final

from matrix.kit.parity.factors import Point

SPECS: Final = (
    "megatron.core.models.gpt.gpt_layer_specs",
    "megatron.core.models.gpt.moe_module_specs",
    "megatron.core.models.backends",
    "megatron.core.transformer.transformer_block",
)
NORMS: Final = ("LNImpl", "LayerNormImpl", "FusedLayerNorm", "WrappedTorchLayerNorm", "WrappedTorchNorm")
ABSENT: Final = (
    "TEColumnParallelGroupedLinear",
    "TERowParallelGroupedLinear",
    "TEColumnParallelLinear",
    "TERowParallelLinear",
)
COMMUNICATION: Final = r"_reduce|_(split|gather|reduce_scatter)_along_(first|last)_dim"  # names of functions


def install(*, attention: bool) -> None:
    """Replace the norm in upstream's specs, in this process; with `attention` its attention, too."""
    _own_results()
    _define_absent()
    replaced = {
        **dict.fromkeys(NORMS, norm_class()),
        **({"DotProductAttention": attention_class()} if attention else {}),
    }
    for name in SPECS:
        try:
            module: Any = importlib.import_module(name)
        except ModuleNotFoundError:
            continue  # an older release
        for attribute in ABSENT:
            vars(module).setdefault(attribute, None)  # 0.10 reads them also for local layers
        for attribute in replaced.keys() & vars(module).keys():
            setattr(module, attribute, replaced[attribute])
        if hasattr(module, "LocalSpecProvider"):
            module.LocalSpecProvider.layer_norm = lambda self, *_, **__: replaced["LNImpl"]


def _define_absent() -> None:
    """Define what a router and an optimizer read, and some releases define beside Transformer Engine alone."""
    from megatron.core.optimizer import distrib_optimizer
    from megatron.core.transformer.moe import moe_utils

    moe_utils.te_general_gemm = None
    for name in ("HAVE_APEX_OR_TE", "USING_TE_OPTIMIZER"):  # they have a faster Adam; torch's is used, and is the same
        if hasattr(distrib_optimizer, name):
            setattr(distrib_optimizer, name, True)
    try:
        from megatron.core import fp8_utils
    except ImportError:
        return
    fp8_utils._quantize_param_shard_impl = lambda *_, **__: None  # raises in 0.12, also for a list without parameters


def _own_results() -> None:
    """Let upstream's communication return a new tensor where it returns its argument.

    Autograd refuses a change in place of an argument that a function of upstream's returned; a kernel of Transformer
    Engine returns a new one.
    """
    from megatron.core.tensor_parallel import mappings

    for name, function in list(vars(mappings).items()):
        if re.fullmatch(COMMUNICATION, name) and not hasattr(function, "__wrapped__"):
            setattr(mappings, name, _returning_own(function))


def _returning_own(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(tensor: Any, *arguments: Any, **keywords: Any) -> Any:
        result = function(tensor, *arguments, **keywords)
        return result.clone() if result is tensor else result

    return call


def norm_class() -> Any:
    """Return a class whose instances are torch's norms, marked as upstream's fused norm marks its parameters."""
    import torch

    class MarkedNorm:
        """torch's LayerNorm or RMSNorm."""

        def __new__(cls, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> Any:
            kind = torch.nn.RMSNorm if config.normalization == "RMSNorm" else torch.nn.LayerNorm
            norm = kind(hidden_size, eps=eps)
            for parameter in norm.parameters():
                parameter.sequence_parallel = config.sequence_parallel
            return norm

    return MarkedNorm


def attention_class() -> Any:
    """Return causal attention for context parallel ranks: each gathers the keys and values of all."""
    import torch
    from megatron.core import parallel_state

    from matrix.kit.parity.shards import context_positions

    gather = _gather_class().apply

    class GatheringAttention(torch.nn.Module):
        """softmax(q k' * scale) v, of [positions, samples, heads, channels]; keys and values may have fewer heads."""

        def __init__(self, config: Any, layer_number: int, *_: Any, softmax_scale: Any = None, **__: Any) -> None:
            super().__init__()
            self.scale = softmax_scale

        def forward(self, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> Any:
            size = parallel_state.get_context_parallel_world_size()
            length = size * query.shape[0]
            mine = context_positions(size, parallel_state.get_context_parallel_rank(), length)
            positions = torch.cat([context_positions(size, number, length) for number in range(size)])
            if size > 1:
                group = parallel_state.get_context_parallel_group()
                key, value = (gather(tensor, group) for tensor in (key, value))
            repeats = query.shape[2] // key.shape[2]
            key, value = (tensor.repeat_interleave(repeats, dim=2) for tensor in (key, value))
            scale = self.scale or query.shape[-1] ** -0.5
            scores = torch.einsum("qbhc,kbhc->bhqk", query, key) * scale
            hidden = (positions[None, :] > mine[:, None]).cuda()
            weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
            return torch.einsum("bhqk,kbhc->qbhc", weights, value).flatten(2)

    return GatheringAttention


def _gather_class() -> Any:
    """Return an autograd function that gathers the tensors of all ranks of a group."""
    import torch

    class Gather(torch.autograd.Function):
        """All ranks' tensors one after the other; backward sums the gradients of all ranks for the own part."""

        @staticmethod
        def forward(context: Any, tensor: Any, group: Any) -> Any:
            context.group = group
            gathered = [torch.empty_like(tensor) for _ in range(group.size())]
            torch.distributed.all_gather(gathered, tensor.contiguous(), group=group)
            return torch.cat(gathered)

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            total = gradient.clone()
            torch.distributed.all_reduce(total, group=context.group)
            return total.chunk(context.group.size())[context.group.rank()], None

    return Gather


def duplicated_linear_class() -> Any:
    """Return a linear layer that every tensor parallel rank has, marked as TELinear marks its weight."""
    import torch

    class DuplicatedLinear(torch.nn.Module):
        """x W'."""

        def __init__(self, inputs: int, outputs: int, *_: Any, config: Any, **__: Any) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.empty(outputs, inputs))
            self.weight.sequence_parallel, self.weight.allreduce = config.sequence_parallel, True

        def forward(self, tensor: Any) -> Any:
            return torch.nn.functional.linear(tensor, self.weight), None

    return DuplicatedLinear


def decoder(point: Point, config: Any, virtual: int | None) -> Any:
    """Return the spec of the layers of this stage."""
    from megatron.core.models.gpt import gpt_layer_specs as upstream

    local = point["modules"] == "local"
    if local:
        install(attention=point["cp"] != 1 or point["attention"] == "mla")
    if point["moe_layers"] == "alternate" and point["experts"]:
        function = upstream.get_gpt_decoder_block_spec
        block = {"use_transformer_engine": not local, "vp_stage": virtual}
        return function(config, **_taken(function, block))
    function = upstream.get_gpt_layer_local_spec if local else upstream.get_gpt_layer_with_transformer_engine_spec
    options: dict[str, Any] = {
        "num_experts": config.num_moe_experts,
        "moe_grouped_gemm": config.moe_grouped_gemm,
        "qk_layernorm": point["qk_norm"],
        "multi_latent_attention": point["attention"] == "mla",
        "normalization": config.normalization,
    }
    spec = function(**_taken(function, options))
    return _duplicating(spec) if local and point["attention"] == "mla" else spec


def _duplicating(spec: Any) -> Any:
    """Return the spec of latent attention with the duplicated layers that it has in Transformer Engine's spec."""
    from megatron.core.transformer import multi_latent_attention

    if hasattr(multi_latent_attention, "TELinear"):
        if not inspect.isclass(multi_latent_attention.TELinear):  # None or a mock, without Transformer Engine
            multi_latent_attention.TELinear = duplicated_linear_class()
        submodules = spec.submodules.self_attention.submodules
        submodules.linear_q_down_proj = submodules.linear_kv_down_proj = multi_latent_attention.TELinear
    return spec


def mtp(point: Point, config: Any, virtual: int | None) -> Any:
    """Return the spec of multi-token prediction, None where this stage has none."""
    if not point["mtp"]:
        return None
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_mtp_block_spec

    options = {"use_transformer_engine": point["modules"] == "te", "vp_stage": virtual}
    return get_gpt_mtp_block_spec(config, decoder(point, config, virtual), **_taken(get_gpt_mtp_block_spec, options))


def _taken(function: Any, options: dict[str, Any]) -> dict[str, Any]:
    signature = inspect.signature(function)
    if any(row.kind is row.VAR_KEYWORD for row in signature.parameters.values()):
        return options
    return {name: value for name, value in options.items() if name in signature.parameters}
