"""Level gpu: Megatron-LM's own pretrain_gpt.py with a tiny model at the report's length. Never run so far.

It needs GPUs, Transformer Engine, and a clone of Megatron-LM, whose training code is in no wheel; the ranks are started
as torchrun would start them. On the host it takes 128 GiB per worker and first sample: it runs in a memory cgroup only.
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import subprocess
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING

from matrix.kit.rank import LackError

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

# The command of the report, as small as a model can be; sequence length and context parallelism come with the case.
ARGUMENTS = (
    "--transformer-impl transformer_engine --use-flash-attn --bf16 --num-layers 1 --hidden-size 64 "
    "--num-attention-heads 2 --position-embedding-type rope --micro-batch-size 1 --global-batch-size 1 "
    "--train-iters 2 --lr 1e-4 --mock-data --tokenizer-type NullTokenizer --vocab-size 1023"
)


def pretrain(rank: Rank, *, sequence: int, mask: bool = True) -> None:
    """Train two iterations with the sequence shared by all ranks, from the clone at the tag of the cell's release.

    Raises LackError where the clone or Transformer Engine is missing, and whatever Megatron-LM raises.
    """
    clone = rank.clones.get("megatron-lm")
    if clone is None:
        raise LackError("needs a clone of Megatron-LM: MEGATRIX_MEGATRON_LM=PATH")
    if importlib.util.find_spec("transformer_engine") is None:
        raise LackError("needs Transformer Engine, as an image has it")
    tree = rank.workdir / f"rank-{rank.rank}"
    tree.mkdir()
    tag = f"core_v{version('megatron-core')}"
    archive = subprocess.run(["git", "-C", clone, "archive", tag], check=True, capture_output=True)
    subprocess.run(["tar", "-x", "-C", tree], input=archive.stdout, check=True)
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"  # Megatron-LM insists
    sys.path.insert(0, str(tree))
    sys.argv = ["pretrain_gpt.py", *ARGUMENTS.split(), "--context-parallel-size", str(rank.world_size)]
    sys.argv += ["--seq-length", str(sequence), "--max-position-embeddings", str(sequence)]
    sys.argv += [] if mask else ["--no-create-attention-mask-in-dataloader"]
    runpy.run_path(str(tree / "pretrain_gpt.py"), run_name="__main__")
