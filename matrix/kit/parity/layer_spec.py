"""Upstream's local layers, with a norm that sequence parallelism takes and attention that takes context parallelism."""

from __future__ import annotations

import inspect
from typing import Any

from matrix.kit.parity import local_layers
from matrix.kit.parity.factors import Point


def decoder(point: Point, config: Any, virtual: int | None) -> Any:
    """Return the spec of the layers of this stage."""
    from megatron.core.models.gpt import gpt_layer_specs as upstream

    local_layers.install(attention=point["cp"] != 1 or point["attention"] == "mla")
    if point["moe_layers"] == "alternate" and point["experts"]:
        function = upstream.get_gpt_decoder_block_spec
        block = {"use_transformer_engine": False, "vp_stage": virtual}
        return function(config, **_taken(function, block))
    function = upstream.get_gpt_layer_local_spec
    options: dict[str, Any] = {
        "num_experts": config.num_moe_experts,
        "moe_grouped_gemm": False,
        "qk_layernorm": point["qk_norm"],
        "multi_latent_attention": point["attention"] == "mla",
        "normalization": config.normalization,
    }
    spec = function(**_taken(function, options))
    return _duplicating(spec) if point["attention"] == "mla" else spec


def _duplicating(spec: Any) -> Any:
    """Return the spec of latent attention with the duplicated layers that it has in Transformer Engine's spec."""
    from megatron.core.transformer import multi_latent_attention

    if hasattr(multi_latent_attention, "TELinear"):
        if not inspect.isclass(multi_latent_attention.TELinear):  # None or a mock, without Transformer Engine
            multi_latent_attention.TELinear = local_layers.duplicated_linear_class()
        submodules = spec.submodules.self_attention.submodules
        submodules.linear_q_down_proj = submodules.linear_kv_down_proj = multi_latent_attention.TELinear
    return spec


def mtp(point: Point, config: Any, virtual: int | None) -> Any:
    """Return the spec of multi-token prediction, None where this stage has none."""
    if not point["mtp"]:
        return None
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_mtp_block_spec

    options = {"use_transformer_engine": False, "vp_stage": virtual}
    return get_gpt_mtp_block_spec(config, decoder(point, config, virtual), **_taken(get_gpt_mtp_block_spec, options))


def _taken(function: Any, options: dict[str, Any]) -> dict[str, Any]:
    signature = inspect.signature(function)
    if any(row.kind is row.VAR_KEYWORD for row in signature.parameters.values()):
        return options
    return {name: value for name, value in options.items() if name in signature.parameters}
