"""Split a packed batch over context parallelism with Megatron-Bridge's own function.

gpt_step.py and packed_seq_utils.py are real. The rest of Megatron-Bridge, which needs dozens of packages, can be
imported and not used; the positions of a rank, which a kernel of Transformer Engine returns, are computed here.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matrix.kit import absent_packages, megatron

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

LENGTHS = (8, 4)  # of the packed sequences: multiples of 2 x CP


class TokensWrong(AssertionError):
    """A rank has other tokens than its chunks."""


def split(rank: Rank, *, mask: bool) -> list[int]:
    """Return this rank's tokens. `mask`: the batch has a placeholder of a mask. Raises what upstream raises."""
    torch = megatron.start(rank, context_parallel_size=rank.world_size)
    from megatron.core import parallel_state

    step = load()
    tokens = torch.arange(sum(LENGTHS))[None]
    batch = {"tokens": tokens, "attention_mask": torch.ones(1) if mask else None}
    batch["cu_seqlens"] = torch.tensor([[0, LENGTHS[0], sum(LENGTHS)]], dtype=torch.int32)
    older = "cp_size" in step._partition_packed_batch_for_cp.__annotations__
    group = rank.world_size if older else parallel_state.get_context_parallel_group()
    own = step._partition_packed_batch_for_cp(batch, group)["tokens"][0].tolist()
    megatron.stop()
    if own != positions(batch["cu_seqlens"][0], sum(LENGTHS), rank.world_size, rank.rank).tolist():
        raise TokensWrong(f"{own} on rank {rank.rank}")
    return [int(token) for token in own]


def load() -> Any:
    """Load Megatron-Bridge's step."""
    folder = (
        next(Path(path) for path in sys.modules["megatron"].__path__ if (Path(path) / "bridge").is_dir()) / "bridge"
    )
    sys.meta_path.insert(0, absent_packages.AbsentPackage("megatron.bridge", frozenset()))
    absent_packages.install(["modelopt"])
    kernels: Any = types.ModuleType("transformer_engine_torch")
    kernels.thd_get_partitioned_indices = positions
    sys.modules[kernels.__name__] = sys.modules["megatron.core.utils"].__dict__["tex"] = kernels
    for name in ("training.utils.packed_seq_utils", "training.gpt_step"):
        path = folder.joinpath(*name.split(".")).with_suffix(".py")
        spec: Any = importlib.util.spec_from_file_location(f"megatron.bridge.{name}", path)
        module: Any = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        module.is_te_min_version = lambda *_, **__: True
    return module


def positions(starts: Any, _: int, ranks: int, rank: int) -> Any:
    """Return the positions of a rank: of 2 x CP chunks of each sequence, its own from the front and from the end."""
    import torch

    chosen_parts = []
    for start, end in zip(starts.tolist(), starts.tolist()[1:], strict=False):
        chunks = torch.arange(start, end).chunk(2 * ranks)
        chosen_parts += [chunks[rank], chunks[2 * ranks - 1 - rank]]
    return torch.cat(chosen_parts)
