"""A tiny GPT model of megatron-core and its training steps, on gloo and the CPU or on NCCL and CUDA."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from matrix.kit import megatron

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

VOCABULARY = 100  # tokens
SEQUENCE = 64  # tokens
MICRO_BATCH = 8  # samples
# The model of upstream's run_simple_mcore_train_loop.py: 2 layers, hidden size 12, 4 heads.


def build_model(rank: Rank, **options: Any) -> Any:
    """Return this rank's stage of the model, on the rank's device; `options` are further ones of GPTModel."""
    import torch
    from megatron.core import parallel_state
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig

    config = TransformerConfig(
        num_layers=2,
        hidden_size=12,
        num_attention_heads=4,
        tensor_model_parallel_size=parallel_state.get_tensor_model_parallel_world_size(),
        pipeline_model_parallel_size=parallel_state.get_pipeline_model_parallel_world_size(),
        use_cpu_initialization=True,
        pipeline_dtype=torch.float32,
    )
    model = GPTModel(
        config=config,
        transformer_layer_spec=get_gpt_layer_local_spec(),
        vocab_size=VOCABULARY,
        max_sequence_length=SEQUENCE,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        **options,
    )
    return model.to(megatron.device(rank))


def build_te_model(rank: Rank, *, embedding: str = "learned_absolute", **settings: Any) -> Any:
    """Return a whole model of Transformer Engine's layers in bf16, on the rank's device; nothing is replaced there.

    `settings` are further ones of TransformerConfig, `embedding` the positions'. All sizes are multiples of 32, as FP8
    requires. megatron-core 0.6 and later.
    """
    import torch
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_with_transformer_engine_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig

    sizes = {"num_layers": 2, "hidden_size": 128, "num_attention_heads": 4, "hidden_dropout": 0.0}
    bf16 = {"bf16": True, "params_dtype": torch.bfloat16, "pipeline_dtype": torch.bfloat16}
    config = TransformerConfig(**sizes, attention_dropout=0.0, **bf16, **settings)
    model = GPTModel(
        config=config,
        transformer_layer_spec=get_gpt_layer_with_transformer_engine_spec(
            num_experts=config.num_moe_experts, moe_grouped_gemm=config.moe_grouped_gemm
        ),
        vocab_size=VOCABULARY,
        max_sequence_length=SEQUENCE,
        position_embedding_type=embedding,
    )
    return model.to(megatron.device(rank), torch.bfloat16)  # as Megatron-LM's Float16Module: positions are float32


def build(rank: Rank, **settings: Any) -> int:
    """Start megatron-core and build build_te_model's model; return the number of its parameters."""
    megatron.start(rank)
    model = build_te_model(rank, **settings)
    megatron.stop()
    return sum(parameter.numel() for parameter in model.parameters())


def train(torch: Any, model: Any, batches: Iterator[Any], steps: int) -> list[float]:
    """Run `steps` optimizer steps; return their losses on the last pipeline stage, [] on the others."""
    from megatron.core.pipeline_parallel.schedules import get_forward_backward_func

    optimizer = torch.optim.Adam(model.parameters())
    forward_backward = get_forward_backward_func()
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        losses += forward_backward(
            forward_step_func=forward_step,
            data_iterator=batches,
            model=model,
            num_microbatches=1,
            seq_length=SEQUENCE,
            micro_batch_size=MICRO_BATCH,
            decoder_seq_length=SEQUENCE,
            forward_only=False,
        )
        optimizer.step()
    return [float(reported["loss"]) for reported in losses]


def batch_stream(torch: Any, device: Any) -> Iterator[Any]:
    """Yield (tokens, labels, position ids, attention mask) for ever, the same on every rank.

    Tokens are [MICRO_BATCH, SEQUENCE] int64.
    """
    generator = torch.Generator().manual_seed(7)
    positions = torch.arange(SEQUENCE).expand(MICRO_BATCH, -1)
    mask = torch.ones(1, 1, SEQUENCE, SEQUENCE, dtype=torch.bool).triu(1)  # True = hidden
    while True:
        text = torch.randint(0, VOCABULARY, (MICRO_BATCH, SEQUENCE + 1), generator=generator)
        yield tuple(tensor.to(device) for tensor in (text[:, :-1], text[:, 1:], positions, mask))


def forward_step(batches: Any, model: Any) -> Any:
    """Megatron's forward-step callback: (iterator, model) -> (output, loss function)."""
    tokens, labels, positions, mask = next(batches)
    return model(tokens, positions, mask, labels=labels), partial(mean_loss)


def mean_loss(losses: Any) -> Any:
    """Return (loss, reported values) from the losses [MICRO_BATCH, SEQUENCE] of the last stage."""
    loss = losses.float().mean()
    return loss, {"loss": loss.detach()}
