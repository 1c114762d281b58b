"""Train a tiny mixture of experts with tensor parallelism and blockwise FP8, with the options of the report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matrix.kit.pretrain import train_checked

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

OPTIONS = (
    "--hidden-size 256 --num-attention-heads 4 --num-experts 2 --moe-grouped-gemm --disable-bias-linear "
    "--tensor-model-parallel-size 2 --sequence-parallel --expert-tensor-parallel-size 1 "
    "--moe-token-dispatcher-type alltoall --fp8-format e4m3"
)


def train(rank: Rank, *, recipe: str) -> list[float]:
    """Return the gradient norms. Raises what Transformer Engine raises. No stand-in."""
    return train_checked(rank, options=f"{OPTIONS} --fp8-recipe {recipe}")
