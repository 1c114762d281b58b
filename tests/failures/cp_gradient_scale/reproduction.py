"""Average a gradient over data and context parallel ranks, as upstream's data parallel wrapper does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matrix.kit import cpu_device, megatron

if TYPE_CHECKING:
    from matrix.kit.rank import Rank


class GradientTimesContext(AssertionError):
    """The gradient is the sum over the context parallel ranks: too large by their number."""


class ContextGradientWrong(AssertionError):
    """The gradient is wrong in another way."""


def average(rank: Rank, *, context_parallel: int) -> float:
    """Return the gradient after the reduction; before, that of every rank is 1.

    Each rank's loss is the mean over its own tokens, as Megatron-LM's own training computes it (times the context
    parallel size, divided by the number of tokens of all ranks of the sequence): the mean of the ranks' gradients is 1.
    """
    torch = megatron.start(rank, context_parallel_size=context_parallel)
    cpu_device.without_streams()
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.transformer.module import MegatronModule
    from megatron.core.transformer.transformer_config import TransformerConfig

    config = TransformerConfig(
        num_layers=1, hidden_size=8, num_attention_heads=2, context_parallel_size=context_parallel
    )
    model = MegatronModule(config)
    model.weight = torch.nn.Parameter(torch.ones(4))
    model.forward = lambda: model.weight.sum()
    wrapped = DistributedDataParallel(config, DistributedDataParallelConfig(), model)
    wrapped().backward()
    wrapped.finish_grad_sync()
    gradient = float(model.weight.main_grad.mean())
    megatron.stop()
    if gradient == 1:
        return gradient
    figures = f"the gradient is {gradient}, the mean of the ranks' gradients is 1"
    if gradient == context_parallel:
        raise GradientTimesContext(figures)
    raise ContextGradientWrong(figures)
