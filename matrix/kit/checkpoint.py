"""Checkpoints of a tiny GPT: a round trip in one cell, or written in one cell and read in another."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from matrix.kit import gpt, megatron
from matrix.kit.rank import LackError

if TYPE_CHECKING:
    from matrix.kit.rank import Rank


DIGEST = "digest.json"  # beside the checkpoint: what its writer saved
# Packages that releases import when they save, and that an image may lack: 0.6 does not save without zarr.
STORES: Final = {"zarr": "zarr<3", "tensorstore": "tensorstore", "psutil": "psutil"}


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

    original = parameters(model)
    folder = rank.workdir / "checkpoint"
    folder.mkdir(exist_ok=True)
    with required():
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
    model = gpt.build_model(rank)
    gpt.train(torch, model, gpt.batch_stream(torch, megatron.device(rank)), 1)
    folder = rank.checkpoint / "model"
    folder.mkdir()
    state = {"iteration": 1, "model": model.sharded_state_dict(prefix="")}
    with required():
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
    model = gpt.build_model(rank)
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


@contextlib.contextmanager
def required() -> Iterator[None]:
    """Raise LackError where a save needs a package of STORES that is absent."""
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, ModuleNotFoundError) and cause.name in STORES:
                raise LackError(f"needs {cause.name} to save: pip install '{STORES[cause.name]}'") from error
            cause = cause.__cause__
        raise


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
