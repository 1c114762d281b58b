"""A router of a mixture of experts, the gradient of its balancing loss by a formula, and a step of it alone."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from matrix.kit import cpu_device, megatron

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

EXPERTS, TOP, WIDTH, TOKENS = 4, 2, 8, 16  # TOKENS of each sequence in each rank
TOLERANCE = 1e-4  # relative, in float32


def build(**options: Any) -> Any:
    """Return upstream's TopKRouter in training mode; `options` are further ones of the TransformerConfig."""
    import torch
    from megatron.core.transformer.moe import moe_utils
    from megatron.core.transformer.moe.router import TopKRouter
    from megatron.core.transformer.transformer_config import TransformerConfig

    histogram = torch.histc
    torch.histc = lambda tensor, *sizes, **named: histogram(tensor.float(), *sizes, **named)  # 0.9, 0.10: of integers
    moe_utils.te_general_gemm = None  # the gating reads it, and 0.16 defines it beside Transformer Engine alone
    layer = {"num_layers": 1, "hidden_size": WIDTH, "num_attention_heads": 2, "use_cpu_initialization": True}
    mixture = {"num_moe_experts": EXPERTS, "moe_router_topk": TOP, "moe_aux_loss_coeff": 1.0}
    config = TransformerConfig(**layer, **mixture, **options, add_bias_linear=False)
    names = ("get_default_pg_collection", "get_default_model_comm_pgs")  # since 0.15; 0.14
    groups = [getattr(moe_utils, name)() for name in names if hasattr(moe_utils, name)][:1]
    router = TopKRouter(config, *groups)
    with torch.no_grad():
        router.weight.copy_(torch.randn(EXPERTS, WIDTH, generator=torch.Generator().manual_seed(1)))
    getattr(router, "set_layer_number", lambda number: None)(1)
    return router


def sequence(torch: Any) -> Any:
    """Return the hidden states [TOKENS, 1, WIDTH] of a sequence, the same in every rank."""
    return torch.randn(TOKENS, 1, WIDTH, generator=torch.Generator().manual_seed(2))


def expected_gradient(torch: Any, weight: Any) -> Any:
    """Return the gradient of the balancing loss with coefficient 1: EXPERTS / TOP * sum(share of tokens * probability).

    The loss is a mean, so that it is the same for one sequence and for any number of equal ones, in one rank or more.
    """
    weight = weight.detach().clone().requires_grad_()
    probabilities = torch.softmax(sequence(torch).flatten(0, 1) @ weight.T, dim=-1)
    chosen = torch.nn.functional.one_hot(probabilities.topk(TOP).indices, EXPERTS).sum(1)
    (chosen.float().mean(0) * probabilities.mean(0)).sum().mul(EXPERTS / TOP).backward()
    return weight.grad


def ratio(computed: Any, expected: Any) -> float:
    """Return the factor between parallel gradients, nan where they are not parallel."""
    factor = float((computed * expected).sum() / (expected * expected).sum())
    parallel = float((computed - factor * expected).abs().max()) <= TOLERANCE * abs(factor) * float(
        expected.abs().max()
    )
    return factor if parallel else float("nan")


class UnknownRatio(AssertionError):
    """A gradient is neither that of the formula nor the one that the failure has."""


def judge(factor: float, deviating: float, error: type[Exception]) -> float:
    """Return the ratio of a gradient to that of the formula if it is 1; raise `error` where it is `deviating`."""
    figures = f"the gradient is {factor:.6f} times that of the formula"
    if abs(factor - 1) < TOLERANCE:
        return factor
    raise error(figures) if abs(factor / deviating - 1) < TOLERANCE else UnknownRatio(figures)


def step(rank: Rank, *, per_token: bool, context_parallel: int = 1, batch: int = 1, kind: str = "aux_loss") -> float:
    """Return the ratio of a router's gradient after upstream's schedule, data parallel wrapper and finalisation.

    Each context parallel rank has TOKENS of each of `batch` equal sequences. The probabilities of a token have the sum
    one: only the balancing loss, attached to them, has a gradient.
    """
    torch = megatron.start(rank, context_parallel_size=context_parallel)
    cpu_device.without_streams()
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
    from megatron.core.enums import ModelType
    from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
    from megatron.core.transformer.module import MegatronModule

    loss = {"moe_router_load_balancing_type": kind, "calculate_per_token_loss": per_token}
    router = build(**loss, context_parallel_size=context_parallel)
    model = MegatronModule(router.config)
    model.router, model.model_type = router, ModelType.encoder_or_decoder
    model.forward = lambda tokens: router(tokens)[0].sum()
    model.set_input_tensor = lambda tensor: None
    wrapped = DistributedDataParallel(router.config, DistributedDataParallelConfig(), model)
    router.config.finalize_model_grads_func = finalize_model_grads
    tokens = torch.tensor(batch * TOKENS, dtype=torch.int)
    outputs: Any = (lambda total: (total, tokens, {})) if per_token else (lambda total: (total / tokens, {}))
    samples = iter([sequence(torch).repeat(1, batch, 1)])
    get_forward_backward_func()(
        forward_step_func=lambda data, module: (module(next(data)), partial(outputs)),
        data_iterator=samples,
        model=[wrapped],
        num_microbatches=1,
        seq_length=TOKENS,
        micro_batch_size=batch,
        forward_only=False,
    )
    factor = ratio(router.weight.main_grad, expected_gradient(torch, router.weight))
    megatron.stop()
    return factor
