"""Compare the gradient of a router's load balancing loss with a padding mask that hides nothing, and without one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matrix.kit import megatron

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

EXPERTS, TOP, WIDTH, TOKENS = 4, 2, 8, 16  # TOKENS of each rank
TOLERANCE = 1e-4  # relative, in float32


class GradientMultiplied(AssertionError):
    """With the mask the gradient is that without it, times the tensor parallel size."""


class MaskedGradientWrong(AssertionError):
    """With the mask the gradient is wrong in another way."""


def balance(rank: Rank, *, per_token: bool) -> float:
    """Return the ratio of both gradients of upstream's TopKRouter, in the sequence parallel ranks of one group.

    Only the load balancing loss has a gradient: the sum of the probabilities does not depend on the weights.
    """
    torch = megatron.start(rank, tensor_parallel=rank.world_size)
    from megatron.core.transformer.moe import moe_utils
    from megatron.core.transformer.moe.router import TopKRouter
    from megatron.core.transformer.transformer_config import TransformerConfig

    moe_utils.te_general_gemm = None  # the gating reads it, and 0.16 defines it beside Transformer Engine alone
    mixture = {"num_moe_experts": EXPERTS, "moe_router_topk": TOP, "moe_aux_loss_coeff": 1.0}
    loss = {"moe_router_load_balancing_type": "aux_loss", "calculate_per_token_loss": per_token}
    parallel = {"tensor_model_parallel_size": rank.world_size, "sequence_parallel": True, "add_bias_linear": False}
    layer = {"num_layers": 1, "hidden_size": WIDTH, "num_attention_heads": 2, "use_cpu_initialization": True}
    router = TopKRouter(
        TransformerConfig(**layer, **mixture, **loss, **parallel), moe_utils.get_default_pg_collection()
    )
    router = router.to(megatron.device(rank))
    tokens = torch.randn(TOKENS, 1, WIDTH, generator=torch.Generator().manual_seed(rank.rank)).to(router.weight.device)

    def gradient(mask: Any) -> Any:
        router.zero_grad()
        probabilities, _ = router(tokens, mask)
        probabilities.sum().backward()
        return router.weight.grad.clone()

    expected, computed = gradient(None), gradient(torch.zeros(TOKENS, 1, dtype=torch.bool, device=tokens.device))
    ratio = float((computed * expected).sum() / (expected * expected).sum())
    equal = torch.allclose(computed, expected, rtol=TOLERANCE, atol=float(expected.abs().max()) * TOLERANCE)
    megatron.stop()
    if equal:
        return ratio
    figures = f"with a padding mask that hides nothing, the gradient is {ratio:.4f} of that without a mask"
    if abs(ratio - rank.world_size) < TOLERANCE * rank.world_size:
        raise GradientMultiplied(figures)
    raise MaskedGradientWrong(figures)
