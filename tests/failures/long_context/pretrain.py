"""Level gpu: Megatron-LM's own pretrain_gpt.py with a tiny model at the report's length.

One rank ran on an H100 with megatron-core 0.16.1 and 0.17.1; more ranks never did.

It needs GPUs, Transformer Engine, and a clone of Megatron-LM, whose training code is in no wheel; the ranks are started
as torchrun would start them. On the host it takes 8*S^2 bytes for each rank's worker: it runs in a memory cgroup only.
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import subprocess
import sys
import sysconfig
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matrix.kit.git import write_tree
from matrix.kit.rank import LackError

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

# The command of the report, as small as a model can be; sequence length and context parallelism come with the case.
# The tokens of the mock data of core 0.7 - 0.14 reach 4095 whatever the vocabulary. Evaluation, 100 iterations in its
# own workers by default, and a second worker would only take more of the memory. The number of samples is divided by
# the interval of evaluation, which has no default since core 0.16 (training/config/training_config.py). The fusion of
# gradient accumulation is on by default and requires Apex's compiled extensions.
ARGUMENTS = (
    "--transformer-impl transformer_engine --use-flash-attn --bf16 --num-layers 1 --hidden-size 64 "
    "--num-attention-heads 2 --position-embedding-type rope --micro-batch-size 1 --global-batch-size 1 "
    "--train-iters 2 --lr 1e-4 --mock-data --tokenizer-type NullTokenizer --vocab-size 8191 "
    "--eval-iters 0 --eval-interval 1000 --num-workers 1 --log-interval 1 --no-gradient-accumulation-fusion"
)
HELPERS = "megatron/core/datasets"  # whose C++ the training compiles on rank 0 while the other ranks import it
LOOK_S = 0.1  # s between two looks for the tree, which rank 0 makes in a few seconds


def pretrain(rank: Rank, *, sequence: int, mask: bool = True) -> dict[str, Any]:
    """Train two iterations with the sequence shared by all ranks, from the clone at the tag of the cell's release.

    Return the number of samples that the training counted.
    Raises LackError where the clone, a compiler or Transformer Engine is missing, and whatever Megatron-LM raises.
    """
    tree = tree_of(rank)
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"  # Megatron-LM insists
    sys.path.insert(0, str(tree))
    sys.argv = ["pretrain_gpt.py", *ARGUMENTS.split(), "--context-parallel-size", str(rank.world_size)]
    sys.argv += ["--seq-length", str(sequence), "--max-position-embeddings", str(sequence)]
    sys.argv += [] if mask else ["--no-create-attention-mask-in-dataloader"]
    names = runpy.run_path(str(tree / "pretrain_gpt.py"), run_name="__main__")
    return {"samples": names["get_args"]().consumed_train_samples}


def tree_of(rank: Rank) -> Path:
    """Return Megatron-LM's tree, which all ranks share: rank 0 makes it and compiles its helpers, the others wait."""
    clone = rank.clones.get("megatron-lm")
    if clone is None:
        raise LackError("needs a clone of Megatron-LM: megatrix sources fetch, or MEGATRIX_MEGATRON_LM=PATH")
    if importlib.util.find_spec("transformer_engine") is None:
        raise LackError("needs Transformer Engine, as an image has it")
    tree = rank.workdir / "megatron-lm"
    if rank.rank == 0:
        made = rank.workdir / "megatron-lm.part"
        write_tree(clone, f"core_v{version('megatron-core')}", made)
        compile_helpers(made / HELPERS)
        made.rename(tree)
    while not tree.is_dir():  # up to the case's deadline
        time.sleep(LOOK_S)
    return tree


def compile_helpers(folder: Path) -> None:
    """Compile the data helpers with Megatron-LM's own Makefile, for this interpreter. Raises LackError."""
    # Else the Makefile asks a python3-config, which may be another Python's; the training runs make once more.
    os.environ["MAKEFLAGS"] = f"LIBEXT={sysconfig.get_config_var('EXT_SUFFIX')}"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    try:
        made = subprocess.run(["make", "-C", folder], env={**os.environ, "PATH": path}, capture_output=True, text=True)
    except FileNotFoundError:
        raise LackError("needs make, to compile Megatron-LM's data helpers") from None
    if made.returncode != 0:
        reason = next(
            (line for line in made.stderr.splitlines() if "error" in line.lower()), f"make: {made.returncode}"
        )
        raise LackError(f"Megatron-LM's data helpers can't be compiled: {reason}")
