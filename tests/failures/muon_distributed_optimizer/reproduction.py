"""Parse and validate the arguments of a training with Muon, as Megatron-LM does before anything starts."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

ARGUMENTS = (
    "--num-layers 1 --hidden-size 8 --num-attention-heads 2 --seq-length 8 --max-position-embeddings 8 --bf16 "
    "--micro-batch-size 1 --train-iters 1 --lr 0.1 --optimizer dist_muon --ckpt-format torch_dist"
)


def validate(rank: Rank, *, distributed: bool) -> str:
    """Return the optimizer of the valid arguments. Raises what Megatron-LM raises. No stand-in."""
    from megatron.training.arguments import parse_args, validate_args

    sys.argv = ["pretrain_gpt.py", *ARGUMENTS.split(), *["--use-distributed-optimizer"] * distributed]
    return str(validate_args(parse_args()).optimizer)
