"""Compare the loss with label smoothing of a vocabulary in parts with torch's cross entropy of the whole one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matrix.kit import megatron

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

TOKENS, VOCABULARY = 6, 8
TOLERANCE = 1e-5  # of losses near 2, in float32


class SmoothedLocally(AssertionError):
    """The loss is that of smoothing over this rank's part of the vocabulary."""


class SmoothedWrong(AssertionError):
    """The loss is wrong in another way."""


def loss(rank: Rank, *, smoothing: float) -> float:
    """Return the mean loss of upstream's function on this rank's part of the logits.

    The target has the weight 1 - smoothing, each of the other tokens the same part of the rest.
    """
    torch = megatron.start(rank, tensor_parallel=rank.world_size)
    from megatron.core.tensor_parallel import vocab_parallel_cross_entropy

    generator = torch.Generator().manual_seed(megatron.SEED)
    logits = torch.randn(TOKENS, 1, VOCABULARY, generator=generator)
    labels = torch.randint(0, VOCABULARY, (TOKENS, 1), generator=generator)
    own = logits.chunk(rank.world_size, dim=-1)[rank.rank].clone()
    computed = vocab_parallel_cross_entropy(own, labels, smoothing)

    def smoothed(entropy: Any, size: int, probabilities: Any) -> Any:
        weight = smoothing * size / (size - 1)
        return (1 - weight) * entropy - weight * probabilities.log().mean(-1)

    shares = torch.softmax(logits, -1)
    entropy = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view(-1, 1)
    expected = smoothed(entropy, VOCABULARY, shares)
    local = smoothed(entropy, own.shape[-1], shares.chunk(rank.world_size, dim=-1)[rank.rank])
    megatron.stop()
    figures = f"{float(computed.mean()):.6f} is returned, {float(expected.mean()):.6f} is the smoothed cross entropy"
    if torch.allclose(computed, expected, atol=TOLERANCE):
        return float(computed.mean())
    if torch.allclose(computed, local, atol=TOLERANCE):
        raise SmoothedLocally(figures)
    raise SmoothedWrong(figures)
