"""Split the tokens of a batch over context parallelism, and their embeddings over tensor parallelism."""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Any

from matrix.kit import megatron

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

WIDTH, VOCABULARY = 8, 16


class PartWrong(AssertionError):
    """A rank has another number of tokens than its part."""


def embed(rank: Rank, *, tensor: int = 1, context: int = 1, length: int) -> int:
    """Return the number of tokens of which this rank has the embeddings. Raises what megatron-core raises."""
    torch = megatron.start(rank, tensor_parallel=tensor, context_parallel_size=context)
    from megatron.core import parallel_state
    from megatron.core.models.common.embeddings.language_model_embedding import LanguageModelEmbedding
    from megatron.core.transformer.transformer_config import TransformerConfig
    from megatron.core.utils import get_batch_on_this_cp_rank

    config = TransformerConfig(
        num_layers=1,
        hidden_size=WIDTH,
        num_attention_heads=4,
        tensor_model_parallel_size=tensor,
        context_parallel_size=context,
        sequence_parallel=tensor > 1,
    )
    embedding: Any = LanguageModelEmbedding(config, VOCABULARY, length, "rope").to(megatron.device(rank))
    tokens = torch.arange(length, device=megatron.device(rank)).remainder(VOCABULARY)[None]
    parameters = inspect.signature(get_batch_on_this_cp_rank).parameters
    if "is_hybrid_cp" in parameters:  # from 0.18 on, where no group means all ranks
        split = partial(
            get_batch_on_this_cp_rank, is_hybrid_cp=False, cp_group=parallel_state.get_context_parallel_group()
        )
    else:
        split = get_batch_on_this_cp_rank
    part = split({"tokens": tokens, "cu_seqlens": None})["tokens"]
    count = len(embedding(part, None))
    megatron.stop()
    if count * tensor * context != length:
        raise PartWrong(f"{count} of {length} tokens on each of {tensor * context} ranks")
    return count
