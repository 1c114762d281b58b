"""Train a tiny mixture of experts with CUDA graphs of its attention and overlapped communication of its experts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matrix.kit.pretrain import train_checked

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

MOST = 1000.0  # times the norm of the iteration before; the report has 10^4 and more
OPTIONS = (
    "--hidden-size 256 --num-attention-heads 4 --num-layers 2 --num-experts 8 --expert-model-parallel-size 8 "
    "--moe-grouped-gemm --moe-token-dispatcher-type alltoall --overlap-moe-expert-parallel-comm --disable-bias-linear "
    "--train-iters 120 --global-batch-size 16"
)


def train(rank: Rank, *, graphs: bool) -> list[float]:
    """Return the gradient norms. Raises FloatingPointError for one that jumps, or is not a number. No stand-in."""
    on = " --cuda-graph-impl transformer_engine --cuda-graph-scope attn" * graphs
    return train_checked(rank, options=OPTIONS + on, most=MOST)
