"""Train a tiny mixture of experts with MXFP8 parameters that are gathered through the gradient buffer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matrix.kit.pretrain import train_checked

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

OPTIONS = (
    "--hidden-size 256 --num-attention-heads 4 --num-experts 2 --moe-grouped-gemm --disable-bias-linear "
    "--use-distributed-optimizer --fp8-format e4m3 --fp8-recipe mxfp8 --fp8-param-gather "
    "--reuse-grad-buf-for-mxfp8-param-ag --train-iters 4 --global-batch-size 2"
)


def train(rank: Rank, *, overlap: bool) -> list[float]:
    """Return the gradient norms. Raises FloatingPointError for one that is not a number. No stand-in."""
    return train_checked(rank, options=OPTIONS + " --overlap-grad-reduce --overlap-param-gather" * overlap)
