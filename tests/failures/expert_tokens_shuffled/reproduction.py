"""Send tokens to experts and back, and compare the result with that of the experts without any parallelism."""

from __future__ import annotations

import contextlib
import types
from typing import TYPE_CHECKING, Any

from matrix.kit import cpu_device, megatron

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

EXPERTS, TOP, WIDTH, TOKENS = 8, 2, 4, 16  # TOKENS of each rank
TOLERANCE = 1e-5


class TokensShuffled(AssertionError):
    """Tokens get the output of others."""


def send(rank: Rank, *, expert_parallel: int, expert_tensor_parallel: int) -> float:
    """Return the largest output of upstream's MoEAlltoAllTokenDispatcher, with an expert e that multiplies by e + 1.

    Each of the expert tensor parallel ranks returns its share of an expert's output, and upstream sums them.
    """
    sizes = {"expert_model_parallel_size": expert_parallel, "expert_tensor_parallel_size": expert_tensor_parallel}
    torch = megatron.start(rank, tensor_parallel=expert_tensor_parallel, **sizes)
    from megatron.core import parallel_state
    from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher
    from megatron.core.transformer.transformer_config import TransformerConfig

    cpu_device.without_streams()
    splits_as_lists(torch)
    layer = {"num_layers": 1, "hidden_size": WIDTH, "num_attention_heads": 2, "add_bias_linear": False}
    mixture = {"num_moe_experts": EXPERTS, "moe_router_topk": TOP, "moe_token_dispatcher_type": "alltoall"}
    parallel = {"tensor_model_parallel_size": expert_tensor_parallel, "sequence_parallel": expert_tensor_parallel > 1}
    own = EXPERTS // expert_parallel
    first = own * parallel_state.get_expert_model_parallel_rank()
    dispatcher = MoEAlltoAllTokenDispatcher(
        own, list(range(first, first + own)), TransformerConfig(**layer, **mixture, **parallel, **sizes)
    )
    generator = torch.Generator().manual_seed(rank.rank)
    tokens = torch.randn(TOKENS, 1, WIDTH, generator=generator)
    weights, chosen = torch.softmax(torch.randn(TOKENS, EXPERTS, generator=generator), -1).topk(TOP)
    probabilities = torch.zeros(TOKENS, EXPERTS).scatter(1, chosen, weights)
    received, counts, *weighted = dispatcher.token_permutation(tokens, probabilities, probabilities > 0)
    received = (
        received * weighted[0].unsqueeze(-1) if weighted else received
    )  # since 0.12 the expert weights its tokens
    factors = torch.repeat_interleave(torch.arange(first, first + own) + 1.0, counts)
    output, _ = dispatcher.token_unpermutation(received * factors.unsqueeze(-1) / expert_tensor_parallel)
    expected = tokens * (probabilities @ (torch.arange(EXPERTS) + 1.0)).view(TOKENS, 1, 1)
    wrong = int(((output - expected).abs().amax((1, 2)) > TOLERANCE).sum())
    largest = float(output.abs().max())
    megatron.stop()
    if wrong:
        raise TokensShuffled(f"the output of {wrong} of {TOKENS} tokens of rank {rank.rank} is that of others")
    return largest


def splits_as_lists(torch: Any) -> None:
    """Pass the sizes of all_to_all_single as lists, and exchange uneven parts one by one: gloo needs both.

    Streams do nothing.
    """
    exchange = torch.distributed.all_to_all_single

    def exchanged(output: Any, tensor: Any, output_split_sizes: Any, input_split_sizes: Any, **named: Any) -> Any:
        sizes = (
            None if size is None else [int(one) for one in size] for size in (output_split_sizes, input_split_sizes)
        )
        return exchange(output, tensor, *sizes, **named)

    def gathered(parts: list[Any], tensor: Any, group: Any = None) -> None:
        parts[torch.distributed.get_rank(group)].copy_(tensor)
        for source, part in zip(torch.distributed.get_process_group_ranks(group), parts, strict=True):
            torch.distributed.broadcast(part, source, group=group)

    def scattered(output: Any, parts: list[Any], group: Any = None) -> None:
        total = torch.cat(list(parts))
        torch.distributed.all_reduce(total, group=group)
        output.copy_(total.split([len(part) for part in parts])[torch.distributed.get_rank(group)])

    stream = types.SimpleNamespace(wait_stream=lambda _: None, record_event=lambda *_: None, synchronize=lambda: None)
    torch.cuda.Stream, torch.cuda.stream = lambda *_: stream, lambda _: contextlib.nullcontext()
    torch.distributed.all_to_all_single = exchanged
    torch.distributed.all_gather, torch.distributed.reduce_scatter = gathered, scattered
