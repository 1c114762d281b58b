"""Clip the gradients of a dense parameter and of an expert, and compare them with clipping by the norm of both."""

from __future__ import annotations

import inspect
import math
from typing import TYPE_CHECKING, Any

from matrix.kit import cpu_device, megatron

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

LIMIT, DENSE, EXPERT = 1.0, 3.0, 4.0  # of the norm; the gradients of two parameters of one number
GROUPS = ("data_parallel_group", "expert_data_parallel_group")
TOLERANCE = 1e-4  # relative: upstream adds 1e-6 to the norm


class ClippedApart(AssertionError):
    """Each part is clipped to the limit by its own norm."""


class ClippedWrong(AssertionError):
    """The parameters are clipped in another way."""


def clip(rank: Rank) -> float:
    """Return the step of the dense parameter by SGD with rate 1: its clipped gradient.

    The optimizer and its chain are upstream's; Apex's kernels for norms and scales are torch functions here.
    """
    torch = megatron.start(rank)
    cpu_device.without_streams()
    from megatron.core import parallel_state
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, clip_grads, get_megatron_optimizer
    from megatron.core.transformer.module import MegatronModule
    from megatron.core.transformer.transformer_config import TransformerConfig

    plain_functions(torch, clip_grads)
    model = MegatronModule(TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=2))
    model.dense, model.expert = torch.nn.Parameter(torch.zeros(1)), torch.nn.Parameter(torch.zeros(1))
    model.expert.allreduce = False  # the mark of an expert's parameter
    switches = dict.fromkeys(inspect.signature(DistributedDataParallelConfig).parameters, False) | {"bucket_size": None}
    before = inspect.signature(DistributedDataParallel).parameters  # up to 0.7 it takes the groups
    groups = {name: parallel_state.get_data_parallel_group() for name in GROUPS if name in before}
    wrapped = DistributedDataParallel(model.config, DistributedDataParallelConfig(**switches), model, **groups)
    optimizer = get_megatron_optimizer(OptimizerConfig(optimizer="sgd", lr=1.0, clip_grad=LIMIT), [wrapped])
    for parameter, gradient in ((model.dense, DENSE), (model.expert, EXPERT)):
        parameter.main_grad.fill_(gradient)
    optimizer.step()
    steps = [-float(parameter.detach()) for parameter in (model.dense, model.expert)]
    megatron.stop()
    total = math.hypot(DENSE, EXPERT)
    figures = f"the clipped gradients are {steps[0]:.4f} and {steps[1]:.4f}"
    if all(abs(step - gradient / total) < TOLERANCE for step, gradient in zip(steps, (DENSE, EXPERT), strict=True)):
        return steps[0]
    if all(abs(step - LIMIT) < TOLERANCE for step in steps):
        raise ClippedApart(f"{figures}; by the norm of both they are {DENSE / total:.4f} and {EXPERT / total:.4f}")
    raise ClippedWrong(figures)


def plain_functions(torch: Any, clip_grads: Any) -> None:
    """Replace Apex's kernels and optimizer by torch's, and let tensors of the CPU have the type that it asserts."""
    import megatron.core.optimizer as optimizers

    def apply(kernel: Any, flag: Any, tensors: Any, *values: Any) -> Any:
        return kernel(tensors, *values)

    def norm(tensors: Any, *_: Any) -> Any:
        return torch.cat([tensor.flatten() for tensor in tensors[0]]).norm().reshape(1), None

    def scale(tensors: Any, factor: float) -> None:
        for source, target in zip(*tensors, strict=True):
            target.copy_(source * factor)

    clip_grads.multi_tensor_applier, clip_grads.l2_norm_impl, clip_grads.multi_tensor_scale_impl = apply, norm, scale
    clip_grads.amp_C = type(
        "Kernels", (), {"multi_tensor_l2norm": staticmethod(norm), "multi_tensor_scale": staticmethod(scale)}
    )
    optimizers.SGD = torch.optim.SGD
    convert = torch.Tensor.type
    torch.Tensor.type = lambda tensor, *to: convert(tensor, *to) if to else "torch.cuda.FloatTensor"
