"""The process that judges points of parity on a card, on the stand-ins of a rehearsal: CUDA, NCCL, TE's kernels.

PLANT names a defect of tests.real.parity_plants for the layouts, not for their references. STARTED: the imports have
started CUDA, so that each rank imports by itself.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from matrix.kit.parity import campaign, layout_step, te_kernels, tiny_model
from matrix.kit.parity.factors import CPU, Leg
from matrix.kit.parity.tiny_model import Device
from matrix.read.machine import cuda
from tests.real.parity_plants import PLANTS, TE_PLANTS
from tests.rehearsal import device

PLANT = "MEGATRIX_PLANT"
STARTED = "MEGATRIX_STARTED"


def main() -> None:
    """Replace the device, plant the defect, and judge."""
    import torch

    device.install()
    torch.cuda.Stream = torch.cuda.Event = device.Stream
    setattr(cuda, cuda.initialised.__name__, lambda: bool(os.environ.get(STARTED)))
    if importlib.util.find_spec("transformer_engine"):
        te_kernels.install(Path(tempfile.mkdtemp(prefix="parity-"), "te"))
    plant, _, _ = {**PLANTS, **TE_PLANTS, "": (None, "", "")}[os.environ.get(PLANT, "")]
    train = layout_step.run

    def planted(leg: Leg, *rest: Any) -> Any:
        if plant and leg.point != leg.point.reference():
            plant()
        return train(leg, *rest)

    setattr(layout_step, train.__name__, planted)
    for function in (tiny_model._fully_sharded, tiny_model.optimizer):  # which ask for CUDA's tensors and its mesh
        setattr(tiny_model, function.__name__, on_cpu(function))
    campaign.main()


def on_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of tiny_model that takes the CPU for its device."""

    def call(*arguments: Any, **options: Any) -> Any:
        own = [replace(each, name=CPU) if isinstance(each, Device) else each for each in arguments]
        return function(*own, **options)

    return call


if __name__ == "__main__":
    main()
