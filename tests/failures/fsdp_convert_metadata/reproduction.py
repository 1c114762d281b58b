"""Convert a checkpoint of torch_dist to fsdp_dtensor with Megatron-LM's tool of the clone at the release's tag."""

from __future__ import annotations

import importlib
import os
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from matrix.kit import megatron, pretrain
from matrix.kit.rank import LackError

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

TOOL = "tools/checkpoint/checkpoint_inspector.py"
KEY = "output_layer.weight"


class WeightWrong(AssertionError):
    """The converted checkpoint has other values."""


def convert(rank: Rank, *, mcore_data: bool = False) -> list[float]:
    """Return the first values of the converted weight. Raises what the tool raises.

    `mcore_data`: the metadata has the attribute, empty, as megatron-core 0.15 writes it. The tool's mesh is one of this
    rank's device.
    """
    clone = rank.clones.get("megatron-lm")
    if clone is None:
        raise LackError("needs a clone of Megatron-LM: megatrix sources fetch, or MEGATRIX_MEGATRON_LM=PATH")
    torch = megatron.start(rank)
    from megatron.core import dist_checkpointing
    from torch.distributed import checkpoint
    from torch.distributed.tensor import DeviceMesh

    tree = rank.workdir / "megatron-lm"
    os.environ["PATH"] += os.pathsep + os.defpath  # of git, which reads the clone
    pretrain.write_tree(clone, f"core_v{version('megatron-core')}", tree, TOOL.__eq__)
    sys.path.insert(0, str((tree / TOOL).parent))
    tool: Any = importlib.import_module("checkpoint_inspector")
    stored, converted = rank.workdir / "torch_dist", rank.workdir / "fsdp_dtensor"
    stored.mkdir()
    weight = torch.arange(8.0).reshape(4, 2)
    with megatron.saving():
        tensors = {"weight": dist_checkpointing.ShardedTensor.from_rank_offsets(KEY, weight)}
        dist_checkpointing.save(tensors, str(stored))
    from_group = DeviceMesh.from_group
    tool.DeviceMesh = type("Mesh", (), {"from_group": staticmethod(lambda group, **_: from_group(group, rank.device))})
    if mcore_data:
        checkpoint.metadata.Metadata.mcore_data = {}
    tool.convert_checkpoint(stored, converted, False, process_group=torch.distributed.group.WORLD)
    loaded = {f"model.module.{KEY}": torch.zeros_like(weight)}
    checkpoint.load(loaded, checkpoint_id=str(converted), no_dist=True)
    values = loaded[f"model.module.{KEY}"].flatten().tolist()
    if values != weight.flatten().tolist():
        raise WeightWrong(f"{values} instead of {weight.flatten().tolist()}")
    return [float(value) for value in values]
