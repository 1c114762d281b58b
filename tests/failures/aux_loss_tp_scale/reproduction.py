"""Compare the gradient of a router's load balancing loss with and without the loss per token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matrix.kit import megatron

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

EXPERTS, TOP, WIDTH, TOKENS = 4, 2, 8, 16  # TOKENS of each rank
TOLERANCE = 1e-4  # relative, in float32


class GradientDivided(AssertionError):
    """With the loss per token the gradient is that without it, divided by the tensor parallel size."""


class BalanceWrong(AssertionError):
    """With the loss per token the gradient is wrong in another way."""


def balance(rank: Rank) -> float:
    """Return the gradient with the loss per token, as a part of that without it.

    finalize_model_grads divides the former by the number of tokens of all ranks, as is done here. The sum of the
    probabilities does not depend on the weights: only the load balancing loss has a gradient.
    """
    torch = megatron.start(rank, tensor_parallel=rank.world_size)
    from megatron.core.transformer.moe import moe_utils
    from megatron.core.transformer.moe.router import TopKRouter
    from megatron.core.transformer.transformer_config import TransformerConfig

    moe_utils.te_general_gemm = None  # the gating reads it, and 0.16 defines it beside Transformer Engine alone
    names = ("get_default_pg_collection", "get_default_model_comm_pgs")
    groups = next(getattr(moe_utils, name)() for name in names if hasattr(moe_utils, name))
    mixture = {"num_moe_experts": EXPERTS, "moe_router_topk": TOP, "moe_aux_loss_coeff": 1.0}
    parallel = {"tensor_model_parallel_size": rank.world_size, "sequence_parallel": rank.world_size > 1}
    layer = {"num_layers": 1, "hidden_size": WIDTH, "num_attention_heads": 2, "use_cpu_initialization": True}
    common = {**layer, **mixture, **parallel, "moe_router_load_balancing_type": "aux_loss", "add_bias_linear": False}
    device = megatron.device(rank)
    tokens = torch.randn(TOKENS, 1, WIDTH, generator=torch.Generator().manual_seed(rank.rank)).to(device)

    def gradient(per_token: bool) -> Any:
        torch.manual_seed(megatron.SEED)
        router = TopKRouter(TransformerConfig(**common, calculate_per_token_loss=per_token), groups).to(device)
        probabilities, _ = router(tokens)
        probabilities.sum().backward()
        return router.weight.grad

    expected, computed = gradient(False), gradient(True) / (TOKENS * rank.world_size)
    ratio = float((computed * expected).sum() / (expected * expected).sum())
    close = torch.allclose(computed, expected * ratio, rtol=TOLERANCE, atol=float(expected.abs().max()) * TOLERANCE)
    megatron.stop()
    figures = f"with the loss per token, the gradient is {ratio:.4f} of that without it"
    if close and abs(ratio - 1) < TOLERANCE:
        return ratio
    if close and abs(ratio * rank.world_size - 1) < TOLERANCE:
        raise GradientDivided(figures)
    raise BalanceWrong(figures)
