"""Compare the gradient in front of a column parallel layer whose weight is frozen with that of the whole matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matrix.kit import megatron

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

WIDTH = 8
TOLERANCE = 1e-5


class NotSummed(AssertionError):
    """The gradient is that of this rank's part of the matrix."""


class InputGradientWrong(AssertionError):
    """The gradient is wrong in another way."""


def backward(rank: Rank, *, asynchronous: bool = True) -> float:
    """Return the gradient of the input of upstream's layer; every weight is 1, and so is every output's gradient.

    It is the number of the matrix's rows. `asynchronous` is on in Megatron-LM's training.
    """
    torch = megatron.start(rank, tensor_parallel=rank.world_size)
    from megatron.core.model_parallel_config import ModelParallelConfig
    from megatron.core.tensor_parallel import ColumnParallelLinear

    parallel = {"tensor_model_parallel_size": rank.world_size, "async_tensor_model_parallel_allreduce": asynchronous}
    config = ModelParallelConfig(**parallel, use_cpu_initialization=True)
    layer = ColumnParallelLinear(WIDTH, WIDTH, config=config, init_method=torch.nn.init.ones_, bias=False)
    layer.weight.requires_grad_(False)
    tokens = torch.ones(2, 1, WIDTH, requires_grad=True)
    layer(tokens)[0].sum().backward()
    gradient = float(tokens.grad.mean())
    megatron.stop()
    if abs(gradient - WIDTH) < TOLERANCE:
        return gradient
    figures = f"the gradient is {gradient} in rank {rank.rank}, that of the whole matrix is {WIDTH}"
    if abs(gradient - WIDTH / rank.world_size) < TOLERANCE:
        raise NotSummed(figures)
    raise InputGradientWrong(figures)
