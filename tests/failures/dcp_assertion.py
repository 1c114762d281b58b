"""What each rank does to meet the DCP save assertion: train a tiny GPT, save it, zero it, load it, compare.

Runs inside the cell, on gloo and the CPU or on NCCL and CUDA, with the same lines.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.failures import megatron_runtime

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

VOCABULARY = 100  # tokens
SEQUENCE = 64  # tokens
MICRO_BATCH = 8  # samples
# The model of upstream's run_simple_mcore_train_loop.py: 2 layers, hidden size 12, 4 heads.


class CheckpointMismatch(AssertionError):
    """The loaded parameters are not, bit for bit, those that were saved."""


def save_and_load(
    rank: Rank,
    *,
    tensor_parallel: int,
    pipeline_parallel: int,
    stand_ins: Mapping[str, Sequence[str]] | None = None,
    steps: int = 5,
) -> dict[str, Any]:
    """Train `steps` steps, save, zero, load; return the number of parameters compared and a digest of them.

    Raises CheckpointMismatch when the save-load round trip changed a parameter, and whatever megatron-core raises.
    """
    torch = megatron_runtime.start(
        rank, tensor_parallel=tensor_parallel, pipeline_parallel=pipeline_parallel, stand_ins=stand_ins
    )
    model = build_model(rank)
    train(torch, model, batch_stream(torch, megatron_runtime.device(rank)), steps)
    compared = round_trip(rank, torch, model)
    megatron_runtime.stop()
    return compared


def round_trip(rank: Rank, torch: Any, model: Any) -> dict[str, Any]:
    """Save, zero, load, compare; return the number of parameters and a digest of them."""
    from megatron.core import dist_checkpointing

    before = parameters(model)
    folder = rank.workdir / "checkpoint"
    folder.mkdir(exist_ok=True)
    dist_checkpointing.save(sharded_state_dict=model.sharded_state_dict(prefix=""), checkpoint_dir=str(folder))
    zero(torch, model)
    state = dist_checkpointing.load(sharded_state_dict=model.sharded_state_dict(prefix=""), checkpoint_dir=str(folder))
    model.load_state_dict(state)
    compare(torch, before, parameters(model))
    return {"parameters": len(before), "digest": digest(before)}


def build_model(rank: Rank) -> Any:
    """Return this rank's stage of the model, on the rank's device."""
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
    )
    return model.to(megatron_runtime.device(rank))


def train(torch: Any, model: Any, batches: Iterator[Any], steps: int) -> None:
    """Run `steps` optimizer steps."""
    from megatron.core.pipeline_parallel.schedules import get_forward_backward_func

    optimizer = torch.optim.Adam(model.parameters())
    forward_backward = get_forward_backward_func()
    for _ in range(steps):
        optimizer.zero_grad()
        forward_backward(
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
    """Return (loss, what is reported) from the losses [MICRO_BATCH, SEQUENCE] of the last stage."""
    loss = losses.float().mean()
    return loss, {"loss": loss.detach()}


def parameters(model: Any) -> dict[str, Any]:
    """Return a copy of every parameter by name."""
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def zero(torch: Any, model: Any) -> None:
    """Set every parameter to zero, so that a load that does nothing shows."""
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
