"""Load weights after the optimizer was built, as fine-tuning does, step once, and compare the parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matrix.kit import cpu_device, megatron

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

WIDTH = 16  # of the one linear layer
INITIAL, LOADED = 1.0, 3.0  # every weight before and after the load; both are exact in bfloat16
RATE = 1e-3  # the first step of Adam changes a weight by this much


class StaleWeights(AssertionError):
    """After the step the weights are near those before the load."""


class WeightsWrong(AssertionError):
    """After the step the weights are wrong in another way."""


def step(rank: Rank, *, offload: bool = True, precision_aware: bool = False, bf16: bool = True) -> float:
    """Build, load weights, reload_model_params as upstream's training does, step once; return the mean weight.

    Upstream's data parallel wrapper, distributed optimizer and HybridDeviceOptimizer are real. Without a GPU, a tensor
    counts as one on the GPU unless cpu() returned it, and streams do nothing.
    """
    torch = megatron.start(rank)
    if rank.device == "cpu":
        cpu_device.two_devices()
    model, optimizer = build(rank, torch, offload=offload, precision_aware=precision_aware, bf16=bf16)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(LOADED)
    optimizer.reload_model_params()
    for parameter in model.parameters():
        parameter.main_grad.fill_(1.0)
    optimizer.step()
    weight = float(next(model.parameters()).detach().float().mean())
    megatron.stop()
    if abs(weight - INITIAL) < 0.1:
        raise StaleWeights(f"the weights were {INITIAL} and {LOADED} was loaded; after one step they are {weight:.3f}")
    if abs(weight - LOADED) > 0.1:
        raise WeightsWrong(f"{LOADED} was loaded; after one step the weights are {weight:.3f}")
    return weight


def build(rank: Rank, torch: Any, *, offload: bool, precision_aware: bool, bf16: bool) -> tuple[Any, Any]:
    """Return a linear layer in upstream's data parallel wrapper, and its optimizer."""
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.transformer.module import MegatronModule
    from megatron.core.transformer.transformer_config import TransformerConfig

    config = TransformerConfig(num_layers=1, hidden_size=WIDTH, num_attention_heads=2, bf16=bf16)
    dtype = torch.bfloat16 if bf16 else torch.float32
    model = MegatronModule(config)
    model.weight = torch.nn.Parameter(torch.full((WIDTH, WIDTH), INITIAL, dtype=dtype, device=megatron.device(rank)))
    wrapped = DistributedDataParallel(config, DistributedDataParallelConfig(use_distributed_optimizer=True), model)
    options = {"optimizer_cpu_offload": True, "optimizer_offload_fraction": 1.0} if offload else {}
    options |= {
        "overlap_cpu_optimizer_d2h_h2d": False,
        "pin_cpu_grads": False,
        "use_precision_aware_optimizer": precision_aware,
    }
    settings = OptimizerConfig(
        optimizer="adam", lr=RATE, bf16=bf16, use_distributed_optimizer=True, clip_grad=0.0, **options
    )
    return wrapped, get_megatron_optimizer(settings, [wrapped])
