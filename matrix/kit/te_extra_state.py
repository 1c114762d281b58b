"""The state of FP8 scaling that a Transformer Engine module saves: written by one release, read by another."""

from __future__ import annotations

import functools
import inspect
import sys
import types
from typing import TYPE_CHECKING, Any

from matrix.kit import cpu_device, te_extension

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

FILE = "module.pt"  # in the checkpoint
SCALE = 3.0  # of the first tensor; a new module has 1


class ScaleWrong(AssertionError):
    """The loaded scale is not the saved one."""


def write(rank: Rank) -> int:
    """Save a module with the state of delayed scaling; return the bytes of its file."""
    import torch

    module = linear(rank)
    module.fp8_meta["scaling_fwd"].scale[0] = SCALE
    torch.save(module.state_dict(), rank.checkpoint / FILE)
    return (rank.checkpoint / FILE).stat().st_size


def read(rank: Rank) -> float:
    """Load what `write` saved into a new module; return the first scale.

    Raises ScaleWrong when it is another, and whatever Transformer Engine raises.
    """
    import torch

    module = linear(rank)
    module.load_state_dict(torch.load(rank.checkpoint / FILE, weights_only=False))
    scale = float(module.fp8_meta["scaling_fwd"].scale[0])
    if scale != SCALE:
        raise ScaleWrong(f"{scale} instead of {SCALE}")
    return scale


def linear(rank: Rank) -> Any:
    """Return a Linear with the state of FP8: a recipe and new tensors of delayed scaling, on the rank's device."""
    import torch

    if rank.device == "cpu":
        cpu_device.install()
        te_extension.install(rank.workdir / f"te-{rank.rank}")
        torch.load = _loaded_on_cpu(torch.load)
        cpu_device.claim_gpu()
    import transformer_engine.pytorch as te
    from transformer_engine.common.recipe import DelayedScaling

    if rank.device == "cpu":
        # Up to 1.13 the tensors are in an object of the extension, which only holds them.
        sys.modules[te_extension.EXTENSION].FP8TensorMeta = types.SimpleNamespace  # type: ignore[attr-defined]
    module = te.Linear(16, 16)
    module.fp8_meta.update(fp8_checkpoint=True, recipe=DelayedScaling(), num_gemms=1)
    takes_recipe = "recipe" in inspect.signature(module.init_fp8_meta_tensors).parameters
    module.init_fp8_meta_tensors(*[module.fp8_meta["recipe"]] * takes_recipe)
    return module


def _loaded_on_cpu(load: Any) -> Any:
    """Return torch.load with its tensors on the CPU: Transformer Engine names CUDA as their device."""

    @functools.wraps(load)
    def loaded(*arguments: Any, **keywords: Any) -> Any:
        return load(*arguments, **keywords | {"map_location": "cpu"})

    return loaded
