"""Train a tiny GPT with Megatron-LM's pretrain_gpt.py in a parallel layout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from matrix.kit.pretrain import train_checked

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

TOKENS: Final = 256  # of a sample: userbuffers divide them by the ranks and by the four parts of a pipelined overlap
MODEL: Final = "--num-layers 2 --hidden-size 256 --num-attention-heads 4 --attention-dropout 0 --hidden-dropout 0"
EXPERTS: Final = (
    "--num-experts 4 --moe-router-topk 2 --moe-grouped-gemm --moe-token-dispatcher-type alltoall --disable-bias-linear"
)


class LayoutDiverged(ArithmeticError):
    """A gradient norm is not a number."""


def train(rank: Rank, *, options: str, experts: bool = False) -> list[float]:
    """Train two iterations with the layout of `options`, dense or with four experts; return the gradient norms.

    Raises LayoutDiverged, and whatever Megatron-LM raises.
    """
    mixture = EXPERTS if experts else ""
    try:
        return train_checked(rank, options=f"{MODEL} {mixture} {options}", sequence=TOKENS)
    except FloatingPointError as error:
        raise LayoutDiverged(str(error)) from None
