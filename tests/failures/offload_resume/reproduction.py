"""Train with an optimizer on the CPU, save, load into a new one, and take one more step with both."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from matrix.kit import cpu_device, megatron

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

WIDTH = 8  # of the one linear layer
SAVED, NEW = 1.0, 8.0  # every weight of the two models before any step or load
GRADIENTS = (1.0, 0.5, 0.25, 0.25)  # of the steps; the last one follows the save
RATE = 0.125  # Adam's; such steps are more than bfloat16's rounding


class StaleCopies(AssertionError):
    """The step continues from the weights before the load."""


class StaleStep(AssertionError):
    """The step continues from the loaded weights and ends at others than without a save."""


def resume(rank: Rank, *, sharding: str, precision_aware: bool = True, allow: bool = False) -> float:
    """Save and load the optimizer's state in the format `sharding`; return the mean weight after the next step.

    Upstream's distributed optimizer, HybridDeviceOptimizer and checkpoints are real; all parameters are offloaded to
    torch's AdamW. Without a GPU, a tensor counts as one on the GPU unless cpu() returned it, and streams do nothing.
    `allow`: torch may unpickle the classes of both optimizers, which a checkpoint of this format has up to 0.18.
    """
    torch = megatron.start(rank)
    from megatron.core import dist_checkpointing

    if rank.device == "cpu":
        cpu_device.two_devices()
    if allow:
        from transformer_engine.pytorch.optimizers import FusedAdam

        torch.serialization.add_safe_globals([torch.optim.AdamW, FusedAdam])
    files = one_device if rank.device == "cpu" else contextlib.nullcontext
    folder = rank.workdir / "checkpoint"
    folder.mkdir()
    model, optimizer = build(rank, torch, SAVED, precision_aware)
    for gradient in GRADIENTS[:-1]:
        step(model, optimizer, gradient)
    state = layout(model, optimizer, sharding, is_loading=False)
    with files(), megatron.saving():
        dist_checkpointing.save(state, str(folder))
    expected = step(model, optimizer, GRADIENTS[-1])
    model, optimizer = build(rank, torch, NEW, precision_aware)
    state = layout(model, optimizer, sharding, is_loading=True)
    with files():
        state = dist_checkpointing.load(state, str(folder))
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    weight = step(model, optimizer, GRADIENTS[-1])
    megatron.stop()
    if abs(weight - NEW) < 1:
        raise StaleCopies(f"{NEW} before the load, {weight:.3f} after the load and a step, instead of {expected:.3f}")
    if abs(weight - expected) > 0.01:
        raise StaleStep(f"after a load and a step the weights are {weight:.3f} instead of {expected:.3f}")
    return weight


@contextlib.contextmanager
def one_device() -> Iterator[None]:
    """Undo two_devices' is_cuda meanwhile: torch communicates, writes and reads without CUDA."""
    import torch

    claimed = torch.Tensor.is_cuda
    del torch.Tensor.is_cuda
    try:
        yield
    finally:
        torch.Tensor.is_cuda = claimed


def layout(model: Any, optimizer: Any, sharding: str, *, is_loading: bool) -> dict[str, Any]:
    """Return what the checkpoint consists of."""
    weights = model.module.sharded_state_dict(prefix="")
    metadata = {"distrib_optim_sharding_type": sharding}
    return {"model": weights, "optimizer": optimizer.sharded_state_dict(weights, is_loading, metadata=metadata)}


def step(model: Any, optimizer: Any, gradient: float) -> float:
    """Take upstream's step without its gradient norm, whose kernel is not here; return the mean weight."""
    for parameter in model.parameters():
        parameter.main_grad.fill_(gradient)
    optimizer.prepare_grads()
    optimizer.step_with_ready_grads()
    return float(next(model.parameters()).detach().float().mean())


def build(rank: Rank, torch: Any, weight: float, precision_aware: bool) -> tuple[Any, Any]:
    """Return a linear layer in upstream's data parallel wrapper, and its optimizer."""
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.transformer.module import MegatronModule
    from megatron.core.transformer.transformer_config import TransformerConfig

    config = TransformerConfig(num_layers=1, hidden_size=WIDTH, num_attention_heads=2, bf16=True)
    model = MegatronModule(config)
    weights = torch.full((WIDTH, WIDTH), weight, dtype=torch.bfloat16, device=megatron.device(rank))
    model.weight = torch.nn.Parameter(weights)
    wrapped = DistributedDataParallel(config, DistributedDataParallelConfig(use_distributed_optimizer=True), model)
    options = {"optimizer_cpu_offload": True, "optimizer_offload_fraction": 1.0, "pin_cpu_grads": False}
    options |= {"overlap_cpu_optimizer_d2h_h2d": False, "use_precision_aware_optimizer": precision_aware}
    settings = OptimizerConfig(
        optimizer="adam", lr=RATE, weight_decay=0.0, bf16=True, use_distributed_optimizer=True, clip_grad=0.0, **options
    )
    return wrapped, get_megatron_optimizer(settings, [wrapped])
