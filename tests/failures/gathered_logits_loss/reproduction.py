"""Compare the loss that a GPTModel returns with torch's cross entropy of the same model's logits."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from matrix.kit import gpt, megatron

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

TOLERANCE = 1e-5  # of a loss near 4.6, in float32


class LossTooHigh(AssertionError):
    """The loss is too high by the logarithm of the tensor parallel size."""


class LossWrong(AssertionError):
    """The loss is wrong in another way."""


def loss(rank: Rank, *, parallel_output: bool, fused: bool = False) -> float:
    """Return the mean loss of a micro-batch, with the vocabulary in two parts.

    The same model also returns its logits, without labels: gathered, or in parts that are gathered here. With `fused`
    the loss is that of cross_entropy_loss_fusion.
    """
    megatron.start(rank, tensor_parallel=2)
    import torch
    from megatron.core.tensor_parallel import gather_from_tensor_model_parallel_region

    model = gpt.build_model(rank, parallel_output=parallel_output).eval()  # the same logits twice: no dropout
    model.config.cross_entropy_loss_fusion = fused
    tokens, labels, positions, mask = next(gpt.batch_stream(torch, megatron.device(rank)))
    with torch.no_grad():
        computed: float = model(tokens, positions, mask, labels=labels).float().mean().item()
        logits = model(tokens, positions, mask)
        if parallel_output:
            logits = gather_from_tensor_model_parallel_region(logits)
    expected = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten()).item()
    megatron.stop()
    figures = f"{computed:.6f} is returned, {expected:.6f} is the cross entropy of the logits"
    if abs(computed - expected - math.log(2)) < TOLERANCE:
        raise LossTooHigh(figures)
    if abs(computed - expected) > TOLERANCE:
        raise LossWrong(figures)
    return computed
