"""Save a checkpoint with torch alone, and read the metadata that save returns."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from matrix.kit import megatron

if TYPE_CHECKING:
    from matrix.kit.rank import Rank


class MetadataIncomplete(AssertionError):
    """The returned Metadata lacks what is in the file."""


def save(rank: Rank) -> int:
    """Return the number of items in the returned Metadata, which must be that of the file. No stand-in."""
    import torch
    import torch.distributed.checkpoint as dcp

    warnings.simplefilter("ignore")  # of storages, in every save
    torch.distributed.init_process_group(rank.backend, init_method=rank.init_method, rank=rank.rank, world_size=1)
    folder = rank.workdir / "checkpoint"
    folder.mkdir()
    returned = dcp.save(
        {"weight": torch.ones(2, device=megatron.device(rank))},
        storage_writer=dcp.FileSystemWriter(folder, sync_files=False),
    )
    written = dcp.FileSystemReader(folder).read_metadata()
    megatron.leave()
    for name in ("storage_meta", "storage_data"):
        if getattr(returned, name) is None and getattr(written, name) is not None:
            raise MetadataIncomplete(f"save returned {name}=None; the file has {type(getattr(written, name)).__name__}")
    return len(returned.storage_data)
