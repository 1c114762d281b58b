"""Load a checkpoint that torch 2.3.1 wrote, or one of this torch."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from matrix.kit.megatron import device, leave

from .of_torch_2_3 import unpack

if TYPE_CHECKING:
    from matrix.kit.rank import Rank


def load(rank: Rank, *, own: bool = False) -> list[float]:
    """Return the loaded tensor. `own`: this torch saves the same content first. No stand-in."""
    import torch
    import torch.distributed.checkpoint as dcp

    warnings.simplefilter("ignore")  # of storages and of torch.load, in every save and load
    torch.distributed.init_process_group("gloo", init_method=rank.init_method, rank=rank.rank, world_size=1)
    folder = rank.workdir / "checkpoint"
    folder.mkdir()
    if own:
        dcp.save(state(rank, 1.0), storage_writer=dcp.FileSystemWriter(folder, sync_files=False))
    else:
        unpack(folder)
    content = state(rank, 0.0)
    dcp.load(content, storage_reader=dcp.FileSystemReader(folder))
    leave()
    return [float(number) for number in content["weight"]]


def state(rank: Rank, number: float) -> dict[str, Any]:
    """Return a tensor on the rank's device, and what an optimizer's state has beside its tensors."""
    import torch

    return {"weight": torch.full((2,), number, device=device(rank)), "optimizer": {"param_groups": [{"lr": number}]}}
