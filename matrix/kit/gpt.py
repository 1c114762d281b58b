"""A tiny GPT model of megatron-core, its training and its checkpoints, on gloo and the CPU or on NCCL and CUDA."""

from __future__ import annotations

import hashlib
import json
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


DIGEST = "digest.json"  # beside the checkpoint: what its writer saved


class CheckpointMismatch(AssertionError):
    """The loaded parameters differ from the saved ones in some bit."""


def save_and_load(
    rank: Rank, *, tensor_parallel: int = 1, pipeline_parallel: int = 1, steps: int = 5
) -> dict[str, Any]:
    """Train `steps` steps, save, zero, load; return the number of parameters compared and a digest of them.

    Raises CheckpointMismatch when the save-load round trip changed a parameter, and whatever megatron-core raises.
    """
    torch = megatron.start(rank, tensor_parallel=tensor_parallel, pipeline_parallel=pipeline_parallel)
    model = build_model(rank)
    train(torch, model, batch_stream(torch, megatron.device(rank)), steps)
    compared = round_trip(rank, torch, model)
    megatron.stop()
    return compared


def round_trip(rank: Rank, torch: Any, model: Any) -> dict[str, Any]:
    """Save, zero, load, compare; return the number of parameters and a digest of them."""
    from megatron.core import dist_checkpointing

    original = parameters(model)
    folder = rank.workdir / "checkpoint"
    folder.mkdir(exist_ok=True)
    with megatron.saving():
        dist_checkpointing.save(sharded_state_dict=model.sharded_state_dict(prefix=""), checkpoint_dir=str(folder))
    zero(torch, model)
    state = dist_checkpointing.load(sharded_state_dict=model.sharded_state_dict(prefix=""), checkpoint_dir=str(folder))
    model.load_state_dict(state)
    compare(torch, original, parameters(model))
    return {"parameters": len(original), "digest": digest(original)}


def write(rank: Rank) -> dict[str, Any]:
    """Train one step and save into rank.checkpoint, with a digest of the parameters; return what was written."""
    from megatron.core import dist_checkpointing

    torch = megatron.start(rank)
    model = build_model(rank)
    train(torch, model, batch_stream(torch, megatron.device(rank)), 1)
    folder = rank.checkpoint / "model"
    folder.mkdir()
    state = {"iteration": 1, "model": model.sharded_state_dict(prefix="")}
    with megatron.saving():
        dist_checkpointing.save(sharded_state_dict=state, checkpoint_dir=str(folder))
    summary = {"parameters": len(parameters(model)), "digest": digest(parameters(model))}
    (rank.checkpoint / DIGEST).write_text(json.dumps(summary), encoding="utf-8")
    megatron.stop()
    return summary


def read(rank: Rank) -> dict[str, Any]:
    """Load what `write` saved into a model of zeros, and compare; return the number of parameters and their digest.

    Raises CheckpointMismatch when a parameter differs, and whatever megatron-core raises.
    """
    from megatron.core import dist_checkpointing

    torch = megatron.start(rank)
    model = build_model(rank)
    zero(torch, model)
    state = {"model": model.sharded_state_dict(prefix="")}
    loaded = dist_checkpointing.load(sharded_state_dict=state, checkpoint_dir=str(rank.checkpoint / "model"))
    model.load_state_dict(loaded["model"])
    summary = {"parameters": len(parameters(model)), "digest": digest(parameters(model))}
    expected = json.loads((rank.checkpoint / DIGEST).read_text(encoding="utf-8"))
    if (summary, loaded.get("iteration")) != (expected, 1):
        raise CheckpointMismatch(
            f"read {summary}, iteration {loaded.get('iteration')}, where {expected}, 1 was written"
        )
    megatron.stop()
    return summary


def parameters(model: Any) -> dict[str, Any]:
    """Return a copy of every parameter by name."""
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def zero(torch: Any, model: Any) -> None:
    """Set every parameter to zero, so that a load without effect is detected."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()


def compare(torch: Any, saved: dict[str, Any], loaded: dict[str, Any]) -> None:
    """Raise CheckpointMismatch unless both hold the same names and the same bits."""
    different = sorted(name for name in saved if not torch.equal(saved[name], loaded[name]))
    if saved.keys() != loaded.keys() or different:
        raise CheckpointMismatch(f"the loaded checkpoint differs from the saved parameters in {different}")


def digest(values: dict[str, Any]) -> str:
    """Return a short hash over all parameters, for comparing runs."""
    sha = hashlib.sha256()
    for name in sorted(values):
        sha.update(name.encode())
        sha.update(values[name].cpu().numpy().tobytes())
    return sha.hexdigest()[:16]
