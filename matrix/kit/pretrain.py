"""Megatron-LM's own pretrain_gpt.py with a tiny model, for cases of level gpu.

It needs GPUs, Transformer Engine, and a clone of Megatron-LM, whose training code is in no wheel before 0.17; the ranks
are started as torchrun would start them.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
import runpy
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matrix.ground.errors import MatrixError
from matrix.kit.rank import LackError
from matrix.read.git import Repository

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

# As small as a model can be; sequence length and parallelism come with the case.
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
NORM = 5  # the place of the gradient norm in what train_step returns, in megatron-core 0.12 - 0.19 (read)
LOOK_S = 0.1  # s between two looks for the tree, which rank 0 makes in a few seconds


def train(rank: Rank, *options: str, sequence: int = 64) -> dict[str, Any]:
    """Train with further options, which replace those of ARGUMENTS, from the clone at the tag of the cell's release.

    Return the number of samples that the training counted. Raises LackError where the clone, a compiler or Transformer
    Engine is missing, and whatever Megatron-LM raises.
    """
    tree = tree_of(rank)
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"  # Megatron-LM insists
    if str(tree) not in sys.path:
        sys.path.insert(0, str(tree))
    sys.argv = ["pretrain_gpt.py", *ARGUMENTS.split(), *options]
    sys.argv += ["--seq-length", str(sequence), "--max-position-embeddings", str(sequence)]
    names = runpy.run_path(str(tree / "pretrain_gpt.py"), run_name="__main__")
    return {"samples": names["get_args"]().consumed_train_samples}


def train_checked(rank: Rank, *, options: str, most: float = math.inf, sequence: int = 64) -> list[float]:
    """Train with these options; return the gradient norm of each iteration.

    Raises FloatingPointError for a norm that is not a number, or more than `most` times the one before, besides what
    `train` raises.
    """
    sys.path.insert(0, str(tree_of(rank)))
    training: Any = importlib.import_module("megatron.training.training")
    step, norms = training.train_step, list[float]()

    def watched(*arguments: Any, **keywords: Any) -> Any:
        results = step(*arguments, **keywords)
        norms.append(float(results[NORM] or 0.0))
        if problem := norm_problem(norms, most):
            raise FloatingPointError(problem)
        return results

    training.train_step = watched
    train(rank, *options.split(), sequence=sequence)
    return norms


def norm_problem(norms: Sequence[float], most: float) -> str:
    """Return what is wrong with the last gradient norm, "" if nothing is."""
    number, last = len(norms), norms[-1]
    if math.isnan(last):
        return f"the gradient norm of iteration {number} is nan"
    before = norms[-2] if number > 1 else 0.0
    if before and last > most * before:
        return f"the gradient norm of iteration {number} is {last / before:.0f} times that of the one before"
    return ""


def tree_of(rank: Rank) -> Path:
    """Return Megatron-LM's tree, which all ranks share: rank 0 makes it and compiles its helpers, the others wait."""
    clone = rank.clones.get("megatron-lm")
    if clone is None:
        raise LackError("needs a clone of Megatron-LM: megatrix sources fetch, or MEGATRIX_MEGATRON_LM=PATH")
    if importlib.util.find_spec("transformer_engine") is None:
        raise LackError("needs Transformer Engine, as an image has it")
    tree = rank.workdir / "megatron-lm"
    if rank.rank == 0 and not tree.is_dir():
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


def write_tree(clone: str, revision: str, target: Path, part: Callable[[str], bool] = bool) -> None:
    """Write the files of a revision, or this part of them, below `target`, in a rank.

    Raises LackError where the clone does not have the revision.
    """
    try:
        with Repository(clone) as repository:
            repository.write(revision, "", target, part)
    except MatrixError as error:
        raise LackError(error.brief) from None
