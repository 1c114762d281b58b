"""A checkpoint round trip: train a tiny GPT, save it, zero it, load it, compare."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from matrix.kit import gpt, megatron

if TYPE_CHECKING:
    from matrix.kit.rank import Rank


class CheckpointMismatch(AssertionError):
    """The loaded parameters differ from the saved ones in some bit."""


def save_and_load(
    rank: Rank, *, tensor_parallel: int = 1, pipeline_parallel: int = 1, steps: int = 5
) -> dict[str, Any]:
    """Train `steps` steps, save, zero, load; return the number of parameters compared and a digest of them.

    Raises CheckpointMismatch when the save-load round trip changed a parameter, and whatever megatron-core raises.
    """
    torch = megatron.start(rank, tensor_parallel=tensor_parallel, pipeline_parallel=pipeline_parallel)
    model = gpt.build_model(rank)
    gpt.train(torch, model, gpt.batch_stream(torch, megatron.device(rank)), steps)
    compared = round_trip(rank, torch, model)
    megatron.stop()
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
