"""Name the dimensions of a device mesh as Megatron-FSDP does before it shards a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matrix.kit.rank import LackError

if TYPE_CHECKING:
    from matrix.kit.rank import Rank


class NamesWrong(AssertionError):
    """The names are not those of the mesh."""


def name_meshes(rank: Rank, *, flatten: bool = False) -> list[str]:
    """Return the names of a 1 x 1 mesh, or with `flatten` also that of its dimensions taken together.

    Raises NamesWrong, and LackError for a torch that Megatron-FSDP can't be imported with.
    """
    import torch
    import torch.distributed.tensor

    if not hasattr(torch.distributed.tensor, "DTensor"):
        raise LackError("needs torch 2.5 or later: Megatron-FSDP imports torch.distributed.tensor.DTensor")
    from megatron.core.distributed.fsdp.src.megatron_fsdp.utils import get_mesh_names
    from torch.distributed.device_mesh import init_device_mesh

    torch.distributed.init_process_group(rank.backend, init_method=rank.init_method, rank=0, world_size=1)
    mesh = init_device_mesh(rank.device, (1, 1), mesh_dim_names=("dp", "tp"))
    expected = ["dp", "tp"]
    if flatten:
        mesh[("dp", "tp")]._flatten("dp_tp")
        expected.append("dp_tp")
    names: list[str] = get_mesh_names(mesh)
    if names != expected:
        raise NamesWrong(f"{names} instead of {expected}")
    return names
