"""Plant a defect in the ranks of a layout, not in the reference, and print what parity finds.

    python -m tests.real.parity_plants [DEFECT ...]        in the interpreter of a cell with megatron-core

Each line: the defect, the point, the outcome, the first deviation.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, Final

from matrix.kit.parity import campaign, layout_step, local_layers
from matrix.kit.parity.factors import Leg, Point


def wrong_reduction() -> None:
    """The sum over tensor parallel ranks, after a row parallel layer, misses one rank."""
    import torch
    from megatron.core.tensor_parallel import mappings

    original = mappings._reduce

    def reduce(tensor: Any, *groups: Any, **keywords: Any) -> Any:
        if torch.distributed.get_rank() == 0:
            tensor = tensor * 0.999
        return original(tensor, *groups, **keywords)

    mappings._reduce = reduce


def dropped_gradient() -> None:
    """One rank does not contribute its gradient of one bias to the data parallel sum."""
    import torch
    from megatron.core.distributed import DistributedDataParallel

    original = DistributedDataParallel.finish_grad_sync

    def finish(self: Any, *arguments: Any, **keywords: Any) -> None:
        if torch.distributed.get_rank() == 1:
            for name, parameter in self.module.named_parameters():
                if name.endswith("final_layernorm.bias"):
                    parameter.main_grad.zero_()
        original(self, *arguments, **keywords)

    DistributedDataParallel.finish_grad_sync = finish


def wrong_scale() -> None:
    """The gradients are divided by one rank too many."""
    from megatron.core.distributed import DistributedDataParallel

    original = DistributedDataParallel.finish_grad_sync

    def finish(self: Any, *arguments: Any, **keywords: Any) -> None:
        original(self, *arguments, **keywords)
        for parameter in self.module.parameters():
            parameter.main_grad *= 2 / 3

    DistributedDataParallel.finish_grad_sync = finish


def wrong_norm() -> None:
    """The norm counts a part of the gradients twice."""
    from megatron.core.optimizer import optimizer

    original = optimizer.get_grad_norm_fp32
    optimizer.get_grad_norm_fp32 = lambda gradients, *rest, **keywords: original(
        [*gradients, *gradients[-1:]], *rest, **keywords
    )


def wrong_mask() -> None:
    """A token of one rank that is masked counts."""
    import dataclasses

    import torch

    from matrix.kit.parity import layout_step

    original = layout_step.micro_batches

    def batches(*arguments: Any) -> Any:
        for batch in original(*arguments):
            if torch.distributed.get_rank() == 1:
                mask = batch.mask.clone()
                mask.view(-1)[int(mask.view(-1).argmin())] = 1.0
                batch = dataclasses.replace(batch, mask=mask)
            yield batch

    layout_step.micro_batches = batches  # type: ignore[assignment]


def other_replica() -> None:
    """One data parallel rank updates a parameter by a millionth more."""
    import torch
    from megatron.core.optimizer.optimizer import FP32Optimizer

    original = FP32Optimizer.step_with_ready_grads

    def step(self: Any) -> Any:
        result = original(self)
        if torch.distributed.get_rank() == 1:
            self.get_parameters()[0].data *= 1 + 1e-6
        return result

    FP32Optimizer.step_with_ready_grads = step


def lost_moments() -> None:
    """A load restores no first moment of Adam."""
    loaded(lambda optimizer: [state["exp_avg"].zero_() for state in optimizer.state.values()])


def lost_scale() -> None:
    """A load restores no step of Adam, by which it scales both moments."""
    loaded(lambda optimizer: [group.update(step=0) for group in optimizer.param_groups])


def loaded(change: Callable[[Any], Any]) -> None:
    """Change the optimizer after each load of its state."""
    from megatron.core.optimizer.optimizer import FP32Optimizer

    original = FP32Optimizer.load_state_dict

    def load(self: Any, state: Any) -> None:
        original(self, state)
        change(self.optimizer)

    FP32Optimizer.load_state_dict = load


def shard_read_twice() -> None:
    """One rank reads the first half of a weight in place of the second."""
    import torch

    original = torch.nn.Module.load_state_dict

    def load(self: Any, state: Any, *rest: Any, **keywords: Any) -> Any:
        for name, values in state.items():
            if torch.distributed.get_rank() == 1 and name.endswith("0.mlp.linear_fc1.weight"):
                state[name] = torch.cat([values[: len(values) // 2]] * 2)
        return original(self, state, *rest, **keywords)

    torch.nn.Module.load_state_dict = load


def muon_wrong_part() -> None:
    """One rank orthogonalizes a thousandth too much of the matrices that ranks share."""
    from megatron.core.optimizer import emerging_optimizers

    original = emerging_optimizers.newton_schulz_tp
    emerging_optimizers.newton_schulz_tp = lambda *arguments, **keywords: (
        original(*arguments, **keywords) * (1.001 if _rank() == 1 else 1)
    )


def muon_not_gathered() -> None:
    """One rank does not gather what its peers updated."""
    from megatron.core.optimizer.layer_wise_optimizer import LayerWiseDistributedOptimizer

    original = LayerWiseDistributedOptimizer.start_param_sync_for_bucket_group_subset

    def sync(self: Any) -> None:
        before = [parameter.detach().clone() for chunk in self.model_chunks for parameter in chunk.parameters()]
        original(self)
        if _rank() == 1:
            after = [parameter for chunk in self.model_chunks for parameter in chunk.parameters()]
            for values, parameter in zip(before, after, strict=True):
                parameter.data.copy_(values)

    LayerWiseDistributedOptimizer.start_param_sync_for_bucket_group_subset = sync


def offload_not_copied() -> None:
    """One rank does not copy the first parameter back from the host."""
    from megatron.core.optimizer.cpu_offloading import HybridDeviceOptimizer

    original = HybridDeviceOptimizer.step

    def step(self: Any, closure: Any = None) -> None:
        first = next(iter(self.gpu_params_map_cpu_copy))
        before = first.detach().clone()
        original(self, closure)
        if _rank() == 1:
            first.data.copy_(before)

    HybridDeviceOptimizer.step = step


def fsdp_wrong_scale() -> None:
    """Megatron-FSDP scales what one rank adds to the gradients by a thousandth too little."""
    from megatron.core.distributed.fsdp.src.megatron_fsdp import param_and_grad_buffer

    original = param_and_grad_buffer.gradient_reduce_preprocessing

    def scale(gradient: Any, factor: Any, config: Any) -> Any:
        return original(gradient.mul_(0.999) if _rank() == 1 else gradient, factor, config)

    param_and_grad_buffer.gradient_reduce_preprocessing = scale


def te_wrong_reduction() -> None:
    """Transformer Engine's reduce-scatter after a row parallel layer misses a part of one rank."""
    from transformer_engine.pytorch.module import linear

    original = linear.reduce_scatter_along_first_dim
    linear.reduce_scatter_along_first_dim = lambda tensor, *rest, **keywords: original(
        tensor * 0.999 if _rank() == 0 else tensor, *rest, **keywords
    )


def te_wrong_scale() -> None:
    """Transformer Engine's gather of a gradient, before a row parallel layer, has a thousandth too much of one rank."""
    from transformer_engine.pytorch.module import base

    original = base.gather_along_first_dim

    def gather(tensor: Any, *rest: Any, **keywords: Any) -> Any:
        return original(tensor * 1.001 if _rank() == 1 else tensor, *rest, **keywords)

    base.gather_along_first_dim = gather


def te_dropped_gradient() -> None:
    """The norm in Transformer Engine's column parallel layer is not marked: ranks do not sum its gradient."""
    from transformer_engine.pytorch import LayerNormLinear

    original = LayerNormLinear.__init__

    def build(self: Any, *arguments: Any, **keywords: Any) -> None:
        original(self, *arguments, **keywords)
        self.layer_norm_weight.sequence_parallel = False

    LayerNormLinear.__init__ = build


def te_dropped_expert() -> None:
    """One rank's grouped layers leave out the gradient of an expert's weight."""
    from transformer_engine.pytorch.module import grouped_linear

    original = grouped_linear.general_grouped_gemm

    def gemm(*arguments: Any, **keywords: Any) -> Any:
        result = original(*arguments, **keywords)
        if keywords.get("layout") == "NT" and _rank() == 1:
            arguments[2][0].zero_()
        return result

    grouped_linear.general_grouped_gemm = gemm


def te_wrong_mask() -> None:
    """Context parallel attention hides nothing in one step of one rank."""
    from transformer_engine.pytorch.attention.dot_product_attention import context_parallel

    original = context_parallel.fused_attn_fwd

    def attention(*arguments: Any, **keywords: Any) -> Any:
        if _rank() == 1:
            keywords["attn_mask_type"] = "no_mask"
        return original(*arguments, **keywords)

    context_parallel.fused_attn_fwd = attention


def te_wrong_correction() -> None:
    """The parts of context parallel attention are put together with weights that are too large by a thousandth."""
    from transformer_engine.pytorch.attention.dot_product_attention import context_parallel

    original = context_parallel.flash_attn_fwd_softmax_lse_correction
    context_parallel.flash_attn_fwd_softmax_lse_correction = lambda total, part: original(total, part + 1e-3)


def fp8_own_scales() -> None:
    """Ranks quantize their parts of a sequence with scales of their own, and gather them."""
    from transformer_engine.pytorch.module import layernorm_linear, linear

    linear.set_quantizer_amax_reduction_group = lambda *_: None
    layernorm_linear.set_quantizer_amax_reduction_group = lambda *_: None


def fp8_own_amaxes() -> None:
    """Delayed scaling does not reduce the largest values over the ranks."""
    from transformer_engine.pytorch.quantization import FP8GlobalStateManager

    FP8GlobalStateManager.reduce_tensor_across_group_op_max = staticmethod(lambda *_: None)


def fp8_stale_transpose() -> None:
    """The transposes of parameters in FP8 are not made again after the optimizer's step."""
    from megatron.core import fp8_utils

    fp8_utils.te_post_all_gather_processing = lambda *_: None


def fp8_parts_with_own_scales() -> None:
    """Each data parallel rank quantizes its part of a parameter with a scale of its own."""
    import torch
    from transformer_engine.pytorch.tensor import utils

    original, reduce = utils._cast_master_weights_to_fp8_current_scaling, torch.distributed.all_reduce

    def cast(*arguments: Any, **keywords: Any) -> None:
        torch.distributed.all_reduce = lambda *_, **__: None
        try:
            original(*arguments, **keywords)
        finally:
            torch.distributed.all_reduce = reduce

    utils._cast_master_weights_to_fp8_current_scaling = cast


def local_modules() -> None:
    """The ranks have Megatron-LM's own layers, which compute what Transformer Engine's on one rank do."""
    original = local_layers.decoder

    def decoder(point: Point, config: Any, virtual: int | None) -> Any:
        config.moe_grouped_gemm = False
        return original(point.changed(modules="local"), config, virtual)

    local_layers.decoder = decoder


def _rank() -> int:
    import torch

    return int(torch.distributed.get_rank())


TE_PLANTS: dict[str, tuple[Callable[[], None] | None, str, str]] = {
    "te none": (None, "modules=te tp=2 cp=2 sequence_parallel=on wgrad_fusion=on", ""),
    "te none of experts": (None, "modules=te experts=4 dp=2 ep=2 etp=1 activation=swiglu", ""),
    "te as local": (local_modules, "modules=te tp=2 norm=rmsnorm activation=swiglu qk_norm=on wgrad_fusion=on", ""),
    "te as local of experts": (local_modules, "modules=te experts=4 dp=2 ep=2 optimizer=adam", ""),
    "te wrong reduction": (te_wrong_reduction, "modules=te tp=2 sequence_parallel=on", "loss"),
    "te wrong scale": (te_wrong_scale, "modules=te tp=2 sequence_parallel=on", "gradient"),
    "te dropped gradient": (te_dropped_gradient, "modules=te tp=2 sequence_parallel=on", "gradient"),
    "te dropped expert": (te_dropped_expert, "modules=te experts=4 dp=2 ep=2", "gradient"),
    "te wrong mask": (te_wrong_mask, "modules=te cp=2", "loss"),
    "te wrong correction": (te_wrong_correction, "modules=te cp=2", "loss"),
    "te none of fp8": (None, "modules=te fp8=delayed tp=2 dp=2 sequence_parallel=on experts=4 ep=2 etp=1", ""),
    "te none of current fp8": (None, "modules=te fp8=tensorwise tp=2 pp=2 sequence_parallel=on recompute=full", ""),
    "fp8 own scales": (fp8_own_scales, "modules=te fp8=tensorwise tp=2 sequence_parallel=on", "loss"),
    "fp8 own amaxes": (fp8_own_amaxes, "modules=te fp8=delayed tp=2 sequence_parallel=on", "loss"),
}
PLANTS: dict[str, tuple[Callable[[], None] | None, str, str]] = {
    "none": (None, "tp=2", ""),
    "wrong reduction": (wrong_reduction, "tp=2", "loss"),
    "dropped gradient": (dropped_gradient, "dp=2", "gradient"),
    "wrong scale": (wrong_scale, "dp=2", "gradient"),
    "wrong norm": (wrong_norm, "tp=2", "norm"),
    "wrong mask": (wrong_mask, "dp=2 per_token_loss=on mask=uneven", "gradient"),
    "other replica": (other_replica, "dp=2", "parameter"),
    "none of a resumed step": (None, "optimizer=adam tp=2 resume=one", ""),
    "lost moments": (lost_moments, "optimizer=adam tp=2 resume=one", "parameter"),
    "lost scale": (lost_scale, "optimizer=adam tp=2 resume=one", "parameter"),
    "shard read twice": (shard_read_twice, "optimizer=adam tp=2 resume=one", "loss"),
    **{
        f"none of fsdp {strategy}": (None, f"optimizer=adam dp=2 distributed_optimizer=on fsdp={strategy}", "")
        for strategy in ("no_shard", "optim", "optim_grads", "optim_grads_params")
    },
    "fsdp wrong scale": (
        fsdp_wrong_scale,
        "optimizer=adam dp=2 distributed_optimizer=on fsdp=optim_grads_params",
        "gradient",
    ),
    "none of offload": (None, "optimizer=adam tp=2 offload=half offload_overlap=on", ""),
    "none of offload of all": (None, "optimizer=adam dp=2 offload=all", ""),
    "offload not copied": (offload_not_copied, "optimizer=adam dp=2 offload=half", "parameter"),
    "none of muon": (None, "optimizer=muon tp=2 dp=2 muon_tp=distributed", ""),
    "none of muon with experts": (None, "optimizer=muon experts=4 dp=2 ep=2 resume=same", ""),
    "muon wrong part": (muon_wrong_part, "optimizer=muon tp=2", "parameter"),
}
MIXED_PLANTS: dict[str, tuple[Callable[[], None] | None, str, str]] = {
    "none of mixed": (None, "optimizer=adam dp=2 tp=2 sequence_parallel=on distributed_optimizer=on", ""),
    "none of offloaded shards": (None, "optimizer=adam dp=2 distributed_optimizer=on offload=half resume=same", ""),
    "none of muon layer by layer": (None, "optimizer=muon dp=2 distributed_optimizer=on resume=same", ""),
    "muon not gathered": (muon_not_gathered, "optimizer=muon dp=2 distributed_optimizer=on", "parameter"),
    "mixed wrong reduction": (wrong_reduction, "tp=2", "loss"),
}
FP8_PARAMETERS: Final = "modules=te optimizer=adam dp=2 distributed_optimizer=on fp8_params=on"
TE_MIXED_PLANTS: dict[str, tuple[Callable[[], None] | None, str, str]] = {
    "te none of fp8 parameters": (None, f"{FP8_PARAMETERS} fp8=delayed", ""),
    "fp8 stale transpose": (fp8_stale_transpose, f"{FP8_PARAMETERS} fp8=tensorwise", "gradient"),
    "fp8 parts with own scales": (fp8_parts_with_own_scales, f"{FP8_PARAMETERS} fp8=tensorwise", "loss"),
}


def main() -> None:
    """Judge the point of each defect, or of those named, by two seeds; in a cell with Transformer Engine of its own."""
    exact, mixed = (TE_PLANTS, TE_MIXED_PLANTS) if campaign.prepare_cell() else (PLANTS, MIXED_PLANTS)
    plants = {**exact, **mixed}
    original, comparisons = layout_step.run, campaign.Comparisons()
    for name in sys.argv[1:] or plants:
        plant, text, _ = plants[name]
        point = Point.parse(text)

        def run(leg: Leg, *rest: Any, plant: Any = plant, point: Point = point) -> Any:
            if plant is not None and leg.point == point:  # not the reference; in a rank, which is a process of its own
                plant()
            return original(leg, *rest)

        layout_step.run = run  # type: ignore[assignment]
        for seed in (1, 2):
            dtype = "mixed" if name in mixed else "float64"
            answer = comparisons.judge(campaign.ParityTask(point, seed, dtype=dtype))
            first = str(answer.deviations[0]) if answer.deviations else answer.text
            row = {"plant": name, "seed": seed, "outcome": answer.outcome, "first": first}
            sys.stdout.write(json.dumps(row) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
