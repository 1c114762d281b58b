"""The model, wrapper and optimizer of a point: upstream's own classes, at a size that a CPU core trains in a second.

`cuda` moves to the card; a stand-in of the CPU keeps everything where it is.
"""

from __future__ import annotations

import inspect
import multiprocessing
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from matrix.kit import cpu_device, megatron
from matrix.kit.parity.factors import CPU, FLOAT64, TOLERANCE, Leg, Point, Value
from matrix.kit.parity.shards import Shard

HIDDEN: Final = 16
HEADS: Final = 4
TE_CHANNELS: Final = 8  # of a head: Transformer Engine's context parallelism asks for a multiple
QUERY_GROUPS: Final = 2  # of gqa
FFN: Final = 32
VOCABULARY: Final = 32  # tokens
SEQUENCE: Final = 8  # tokens of a sample
# These sizes are larger with FP8: its kernels take matrices of multiples of 16 on each rank, blocks have 128 values.
FP8_TIMES: Final[Mapping[Value, int]] = {"none": 1, "delayed": 4, "tensorwise": 4, "blockwise": 8, "mxfp8": 4}
COEFFICIENT: Final = 0.1  # of an auxiliary loss: large enough for its gradient to be seen
CLIP: Final = 0.05  # of the gradient's norm: below it, so that every step is clipped
RATE: Final = 0.1
FP8_MARGIN: Final = 4  # bits above the largest value of the step before, so that no value of the next saturates
FRACTIONS: Final[Mapping[Value, float]] = {"none": 0.0, "half": 0.5, "all": 1.0}  # of the parameters: offloaded ones

ONE: Final = dict.fromkeys(("context_parallel_size", "expert_model_parallel_size"), 1)
# What a release does that lacks the option.
PLAIN: Final[Mapping[str, Any]] = {
    **ONE,
    "softmax_type": "vanilla",
    "normalization": "LayerNorm",
    "moe_router_score_function": "softmax",
    "moe_layer_freq": 1,
    "moe_ffn_hidden_size": FFN,
    "moe_router_topk": 2,
    "moe_token_dispatcher_type": "allgather",
    "moe_router_load_balancing_type": "none",
    "moe_aux_loss_coeff": 0.0,
}


@dataclass(frozen=True)
class Device:
    """What computes. Layouts, weights, samples and the comparison are the same on each.

    `backend` connects the ranks, `dtype` is that of parameters and activations. `moves` is the number of references
    with moved weights from which the tolerance is measured, `floor` the least tolerance: see factors.Tolerance. A
    gradient of up to `idle` may be too small to change a parameter: noise, where it is zero in theory. With `mixed`,
    half precision is float32: see campaign.half_in_float32.
    """

    name: str = CPU
    backend: str = "gloo"
    dtype: str = FLOAT64
    floor: float = TOLERANCE
    moves: int = 0
    idle: float = 1e-12
    mixed: bool = False

    def unit(self, name: str, fp8: Value = "none") -> float:
        """Return one unit in the last place of 1.0 as a parameter has it, of linear layers with FP8 as E4M3 has it."""
        import torch

        rounded = self.dtype != FLOAT64 and not self.mixed and fp8 != "none"
        linear = rounded and name.endswith("weight") and ".linear_" in name
        return float(torch.finfo(torch.float8_e4m3fn if linear else getattr(torch, self.dtype)).eps)


def sized(point: Point, size: int) -> int:
    """Return one of the sizes above as a point has it."""
    return size * FP8_TIMES[point["fp8"]]


class UnsupportedError(Exception):
    """The release has no such option."""


def initialize(point: Point) -> None:
    """Set up upstream's process groups for the layout of a point."""
    from megatron.core import parallel_state

    groups = {
        "tensor_model_parallel_size": point.count("tp"),
        "pipeline_model_parallel_size": point.count("pp"),
        "virtual_pipeline_model_parallel_size": point.count("vpp") if point["vpp"] != 1 else None,
        "context_parallel_size": point.count("cp"),
        "expert_model_parallel_size": point.count("ep"),
        "expert_tensor_parallel_size": point.etp,
    }
    function = parallel_state.initialize_model_parallel
    function(**accepted(function, groups, **{**ONE, "expert_tensor_parallel_size": point.count("tp")}))
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    model_parallel_cuda_manual_seed(1)


def accepted(function: Callable[..., Any], options: Mapping[str, Any], **plain: Any) -> dict[str, Any]:
    """Return the options that a function or class of this release takes.

    An option that it lacks is left out if it is None or False, or has the value in `plain`: what every release does
    that lacks it. Raises UnsupportedError for another one.
    """
    names = inspect.signature(function).parameters
    for name, value in options.items():
        if name not in names and value not in (None, False) and value != plain.get(name):
            raise UnsupportedError(f"this megatron-core has no {name}, which is {value!r}")
    return {name: value for name, value in options.items() if name in names}


def transformer_config(point: Point, device: Device) -> Any:
    """Return upstream's TransformerConfig of a point; MLATransformerConfig for latent attention."""
    from megatron.core.transformer import transformer_config as upstream

    options = {**_shape(point), **_experts(point), **_layout(point), **_computing(point, device)}
    kind = upstream.TransformerConfig
    if point["attention"] == "mla":
        if not hasattr(upstream, "MLATransformerConfig"):
            raise UnsupportedError("this megatron-core has no multi-latent attention")
        kind = upstream.MLATransformerConfig
        latent = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_head_dim": 4, "qk_pos_emb_head_dim": 4, "v_head_dim": 4}
        options |= {name: sized(point, size) for name, size in latent.items()}
        options |= {"rope_type": "rope", "multi_latent_attention": True}
    return kind(**accepted(kind, options, **PLAIN, expert_tensor_parallel_size=point.count("tp")))


def _shape(point: Point) -> dict[str, Any]:
    import torch

    gated = point["activation"] == "swiglu"
    return {
        "num_layers": point.count("layers"),
        "hidden_size": sized(point, HIDDEN),
        "num_attention_heads": HEADS,
        "kv_channels": sized(point, TE_CHANNELS) if point["modules"] == "te" else None,
        "num_query_groups": QUERY_GROUPS if point["attention"] == "gqa" else None,
        "ffn_hidden_size": sized(point, FFN),
        "gated_linear_unit": gated,
        "activation_func": torch.nn.functional.silu if gated else torch.nn.functional.gelu,
        "normalization": "RMSNorm" if point["norm"] == "rmsnorm" else "LayerNorm",
        "add_bias_linear": point["bias"],
        "add_qkv_bias": point["qkv_bias"],
        "qk_layernorm": point["qk_norm"],
        "attention_output_gate": point["output_gate"],
        "softmax_type": point["softmax"],
        "rotary_interleaved": point["rotary_interleaved"],
        "use_mup": point["mup"],
        "calculate_per_token_loss": point["per_token_loss"],
        "mtp_num_layers": point["mtp"] or None,
        "mtp_loss_scaling_factor": 0.1 if point["mtp"] else None,
        # No kernel is fused: that is upstream's default in every release.
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "gradient_accumulation_fusion": point["wgrad_fusion"],
    }


def _experts(point: Point) -> dict[str, Any]:
    if not point["experts"]:
        return {}
    return {
        "num_moe_experts": point["experts"],
        "moe_ffn_hidden_size": sized(point, FFN),
        "moe_router_topk": point["topk"],
        "moe_router_load_balancing_type": point["balancing"],
        "moe_aux_loss_coeff": COEFFICIENT if "aux_loss" in str(point["balancing"]) else 0.0,
        "moe_z_loss_coeff": COEFFICIENT if point["z_loss"] else None,
        "moe_router_score_function": point["score"],
        "moe_router_pre_softmax": point["pre_softmax"],
        "moe_router_enable_expert_bias": point["expert_bias"],
        "moe_token_dispatcher_type": point["dispatcher"],
        "moe_shared_expert_intermediate_size": sized(point, FFN) if point["shared_expert"] else None,
        "moe_shared_expert_gate": point["shared_gate"],
        "moe_shared_expert_overlap": point["shared_overlap"],
        "moe_layer_freq": 2 if point["moe_layers"] == "alternate" else 1,
        "moe_grouped_gemm": point["modules"] == "te",
        "moe_router_num_groups": 2 if point["groups"] else None,
        "moe_router_group_topk": 1 if point["groups"] else None,
    }


def _computing(point: Point, device: Device) -> dict[str, Any]:
    import torch

    precision = getattr(torch, device.dtype)
    fp8: dict[str, Any] = {}
    if point["fp8"] != "none":
        fp8 = {
            "fp8": "hybrid" if point["fp8"] in ("delayed", "tensorwise") else "e4m3",
            "fp8_margin": FP8_MARGIN if device.name == CPU else 0,
            "fp8_recipe": point["fp8"],
            "fp8_param": point["fp8_params"],
        }
    return {
        **fp8,
        "use_cpu_initialization": device.name == CPU,
        "pipeline_dtype": precision,
        "params_dtype": precision,
        "bf16": precision is torch.bfloat16,
    }


def _layout(point: Point) -> dict[str, Any]:
    full, interleaved = point["recompute"] == "full", point["vpp"] != 1
    return {
        "recompute_granularity": None if point["recompute"] == "none" else point["recompute"],
        "recompute_method": "uniform" if full else None,
        "recompute_num_layers": 1 if full else None,
        "num_layers_in_first_pipeline_stage": 1 if point["uneven_stages"] else None,
        "tensor_model_parallel_size": point.count("tp"),
        "pipeline_model_parallel_size": point.count("pp"),
        "virtual_pipeline_model_parallel_size": point.count("vpp") if interleaved else None,
        "context_parallel_size": point.count("cp"),
        "cp_comm_type": None if point["cp_comm"] == "p2p" else point["cp_comm"],
        "expert_model_parallel_size": point.count("ep"),
        "expert_tensor_parallel_size": point.etp if point["experts"] else None,
        "sequence_parallel": point["sequence_parallel"],
        # Gloo matches the sends and receives of a batch in their order, which two chunks of one rank do not share.
        "batch_p2p_comm": not interleaved,
        "overlap_p2p_comm": interleaved,
    }


def model_chunks(point: Point, config: Any) -> list[Any]:
    """Return the chunks of this rank, one for each of its virtual stages."""
    from megatron.core.transformer.module import Float16Module

    count = point.count("vpp")
    chunks = [chunk(point, config, number if count > 1 else None) for number in range(count)]
    return [Float16Module(config, module) for module in chunks] if config.bf16 else chunks


def data_parallel(point: Point, config: Any, chunks: list[Any], device: Device) -> list[Any]:
    """Return the chunks in upstream's data parallel wrapper."""
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig

    kind = DistributedDataParallel if point["fsdp"] == "none" else partial(_fully_sharded, device)
    wrapper = DistributedDataParallelConfig(**accepted(DistributedDataParallelConfig, _wrapper(point), **ONE))
    return [
        kind(config, wrapper, module, disable_bucketing=number > 0, **_matrices_whole(point, wrapper, module))
        for number, module in enumerate(chunks)
    ]


def _wrapper(point: Point) -> dict[str, Any]:
    options = {
        "grad_reduce_in_fp32": True,
        "use_distributed_optimizer": point["distributed_optimizer"],
        "overlap_grad_reduce": point["overlap_grad_reduce"],
        "overlap_param_gather": point["overlap_param_gather"],
        "average_in_collective": point["average_in_collective"],
        "bucket_size": 2000 if point["small_buckets"] else None,
        "fp8_param_gather": point["fp8_params"],
    }
    if point["fsdp"] != "none":  # gloo has no sum that multiplies
        options |= {"use_megatron_fsdp": True, "gradient_reduce_div_fusion": False}
        options["data_parallel_sharding_strategy"] = point["fsdp"]
    return options


def _fully_sharded(device: Device, *arguments: Any, **options: Any) -> Any:
    """Return Megatron-FSDP's wrapper. On the CPU that is its device and mesh; it asks for the number of a card, too."""
    import torch
    from megatron.core.distributed.fsdp import mcore_fsdp_adapter as upstream

    if device.name != CPU:
        return upstream.FullyShardedDataParallel(*arguments, **options)
    mesh, current = torch.distributed.DeviceMesh, torch.cuda.current_device
    upstream.DeviceMesh = SimpleNamespace(
        from_group=lambda groups, device_type, **more: mesh.from_group(groups, "cpu", **more)
    )
    torch.cuda.current_device = lambda: 0
    wrapped = upstream.FullyShardedDataParallel(*arguments, device=torch.device("cpu"), **options)
    torch.cuda.current_device = current
    return wrapped


def divided(owned: list[Shard], chunks: list[Any]) -> list[Shard]:
    """Return the shards of Megatron-FSDP: of each parameter what its optimizer has on this rank."""
    parts = {}
    for buffer in (wrapped.param_and_grad_buffer for wrapped in chunks):
        whole = buffer.bucketing_policy.data_parallel_sharding_strategy == "no_shard"
        for _, parameter in buffer.optimizer_named_parameters:
            group = buffer.parameter_groups[buffer.param_to_param_group[parameter.orig_param]]
            item = group.main_grad_buffer.param_idx[parameter.orig_param]
            span = (0, None) if whole else group.main_grad_buffer._get_item_slice_in_shard(item)
            parts[parameter.orig_param] = parameter, slice(*span)
    rows = ((shard, *parts[shard.parameter]) for shard in owned)
    return [replace(shard, index=shard.index.flatten()[span], parameter=part) for shard, part, span in rows]


def _matrices_whole(point: Point, wrapper: Any, module: Any) -> dict[str, Any]:
    """Return the buffers of a chunk in which no matrix that Muon updates is cut, as Megatron-LM's training.py does."""
    if not _layer_wise(point):
        return {}
    from megatron.core import parallel_state
    from megatron.core.optimizer import layer_wise_optimizer as upstream

    upstream.tag_params_for_buffer_routing([module])
    layout = upstream.LayerWiseDistributedOptimizer.compute_full_param_layout(
        list(module.parameters()),
        wrapper.bucket_size,
        _data_parallel().size(),
        wrapper,
        expert_data_parallel_world_size=parallel_state.get_expert_data_parallel_world_size(),
    )
    return {"full_param_layout": layout}


def _layer_wise(point: Point) -> bool:
    return point["optimizer"] == "muon" and bool(point["distributed_optimizer"])


def chunk(point: Point, config: Any, virtual: int | None) -> Any:
    """Return upstream's GPTModel for one stage."""
    from megatron.core import parallel_state
    from megatron.core.models.gpt.gpt_model import GPTModel

    from matrix.kit.parity import local_layers

    stage = {}
    if virtual is not None:
        parallel_state.set_virtual_pipeline_model_parallel_rank(virtual)
        stage = {"ignore_virtual": False, "vp_stage": virtual}
    ends = [
        function(**accepted(function, stage, **stage))
        for function in (parallel_state.is_pipeline_first_stage, parallel_state.is_pipeline_last_stage)
    ]
    options = {
        "mtp_block_spec": local_layers.mtp(point, config, virtual),
        "vp_stage": virtual,
        "position_embedding_type": "rope" if point["position"] == "rope" else "learned_absolute",
        "share_embeddings_and_output_weights": not point["untied"],
    }
    model = GPTModel(
        config=config,
        transformer_layer_spec=local_layers.decoder(point, config, virtual),
        vocab_size=VOCABULARY,
        max_sequence_length=sized(point, SEQUENCE),
        pre_process=ends[0],
        post_process=ends[1],
        parallel_output=True,
        **accepted(GPTModel, options, vp_stage=virtual),
    )
    return model.cuda()


def bare(wrapped: Any) -> Any:
    """Return the GPTModel in data parallel wrappers, and in that of half precision."""
    return bare(wrapped.module) if hasattr(wrapped, "module") else wrapped


def optimizer(point: Point, config: Any, chunks: list[Any], device: Device) -> Any:
    """Return upstream's optimizer of the chunks."""
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    if point["offload"] != "none" and device.name == CPU:
        _claim_card()
    options = {**_optimizer(point), "params_dtype": config.params_dtype, "bf16": config.bf16}
    plain = {"fp8_recipe": point["fp8"]}  # before 0.13
    return get_megatron_optimizer(OptimizerConfig(**accepted(OptimizerConfig, options, **plain)), chunks)


def _optimizer(point: Point) -> dict[str, Any]:
    options = {
        "optimizer": point["optimizer"],
        "lr": RATE if point["optimizer"] == "sgd" else RATE / 10,
        "weight_decay": 0.1 if point["weight_decay"] else 0.0,
        "clip_grad": CLIP if point["clip"] else 0.0,
        "sgd_momentum": 0.9,
        "use_distributed_optimizer": point["distributed_optimizer"] and not _layer_wise(point),
        "overlap_param_gather": point["overlap_param_gather"],
        "fp8_recipe": point["fp8"] if point["fp8"] != "none" else None,
        "use_layer_wise_distributed_optimizer": _layer_wise(point),
        "optimizer_cpu_offload": point["offload"] != "none",
        "optimizer_offload_fraction": FRACTIONS[point["offload"]],
        "overlap_cpu_optimizer_d2h_h2d": point["offload_overlap"],
        # With distributed_optimizer=on as Megatron-LM demands.
        "use_precision_aware_optimizer": point["offload"] != "none" and point["distributed_optimizer"],
    }
    if point["optimizer"] == "muon":  # its default precision rounds to bfloat16
        options |= {"muon_tp_mode": point["muon_tp"], "muon_fp32_matmul_prec": "highest"}
    return options


def _claim_card() -> None:
    """Let the tensors of upstream's optimizers count as a card's, but for the host's copies; torch's AdamW has both."""
    from megatron.core import optimizer as upstream
    from torch.optim.adamw import AdamW

    cpu_device.claim_tensors(lambda tensor: sys._getframe(1).f_globals["__name__"].startswith(upstream.__name__))
    upstream.Adam = upstream.CPUAdam = AdamW


def save(leg: Leg, chunks: list[Any], optimizer: Any, folder: Path) -> None:
    """Write model and optimizer as Megatron-LM does by default: each data parallel rank a part."""
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing import serialization
    from megatron.core.dist_checkpointing.strategies import filesystem_async, fully_parallel

    # Upstream spawns the process that owns this queue, which imports torch anew; a forked one does not.
    filesystem_async._results_queue = multiprocessing.get_context("fork").Manager().Queue()
    folder.mkdir(exist_ok=True)
    strategy = serialization.get_default_save_sharded_strategy()
    strategy = fully_parallel.FullyParallelSaveStrategyWrapper(strategy, _data_parallel())
    with megatron.saving():
        dist_checkpointing.save(sharded(leg, chunks, optimizer, loading=False), str(folder), strategy)


def load(leg: Leg, chunks: list[Any], optimizer: Any, folder: Path) -> None:
    """Read what `save` wrote, under any layout."""
    import torch
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing import serialization
    from megatron.core.dist_checkpointing.strategies import fully_parallel

    strategy = serialization.get_default_load_sharded_strategy(str(folder))
    if leg.point["parallel_load"]:
        strategy = fully_parallel.FullyParallelLoadStrategyWrapper(strategy, _data_parallel())
    state = dist_checkpointing.load(sharded(leg, chunks, optimizer, loading=True), str(folder), strategy)
    for name, wrapped in _named(chunks):
        wrapped.module.load_state_dict(state[name])
    with torch.no_grad():  # dp_reshardable writes into views of float32 parameters, which autograd refuses
        optimizer.load_state_dict(state["optimizer"])


def _data_parallel() -> Any:
    from megatron.core import parallel_state

    return parallel_state.get_data_parallel_group(with_context_parallel=True)


def _named(chunks: list[Any]) -> list[tuple[str, Any]]:
    return [(f"model{number}" if len(chunks) > 1 else "model", wrapped) for number, wrapped in enumerate(chunks)]


def sharded(leg: Leg, chunks: list[Any], optimizer: Any, *, loading: bool) -> dict[str, Any]:
    """Return upstream's sharded state of model and optimizer, in the format that Megatron-LM takes for the layouts."""
    from megatron.core import parallel_state
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

    kind = "fully_reshardable" if leg.reshards else "dp_reshardable"
    if not hasattr(DistributedOptimizer, "checkpoint_fully_reshardable_formats"):  # before 0.15
        kind = "fully_sharded_model_space"
    metadata: dict[str, Any] = {
        "singleton_local_shards": False,
        "chained_optim_avoid_prefix": True,
        "dp_cp_group": _data_parallel(),
        **({"distrib_optim_sharding_type": kind} if leg.point["distributed_optimizer"] else {}),
    }
    versioned = "metadata" in inspect.signature(DistributedOptimizer.sharded_state_dict).parameters
    options: dict[str, Any] = {"metadata": metadata} if versioned else {}
    state = {}
    for number, (name, wrapped) in enumerate(_named(chunks)):
        if len(chunks) > 1:
            parallel_state.set_virtual_pipeline_model_parallel_rank(number)
        state[name] = wrapped.module.sharded_state_dict(**options)
    if not versioned and leg.point["distributed_optimizer"]:
        options = {"sharding_type": kind}
    return {**state, "optimizer": optimizer.sharded_state_dict(state, is_loading=loading, **options)}


def preload() -> None:
    """Import what a step uses: the ranks that are forked from this process share it."""
    import megatron.core.dist_checkpointing.strategies.fully_parallel
    import megatron.core.distributed
    import megatron.core.models.gpt.gpt_layer_specs
    import megatron.core.models.gpt.gpt_model
    import megatron.core.optimizer
    import megatron.core.pipeline_parallel.schedules  # noqa: F401
