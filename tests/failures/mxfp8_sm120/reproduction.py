"""Enter Transformer Engine's FP8 context with the MXFP8 recipe, on a GPU of a stated compute capability.

Transformer Engine's Python is real. Stand-ins are the compiled extension and the GPU, whose capability it reads.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

from matrix.kit import cpu_device, te_extension

if TYPE_CHECKING:
    from matrix.kit.rank import Rank


def enter(rank: Rank, *, major: int) -> str:
    """Return the recipe in whose context a layer would run. Raises what Transformer Engine raises."""
    import torch

    cpu_device.install()
    cpu_device.claim_gpu()
    torch.cuda.get_device_properties = lambda *_: SimpleNamespace(major=major, minor=0)
    torch.version.cuda = "13.0"  # the CPU build has none
    te_extension.install(rank.workdir / "te")
    import transformer_engine.pytorch as te
    from transformer_engine.common.recipe import MXFP8BlockScaling

    recipe = MXFP8BlockScaling()
    with te.fp8_autocast(enabled=True, fp8_recipe=recipe):
        return type(recipe).__name__
