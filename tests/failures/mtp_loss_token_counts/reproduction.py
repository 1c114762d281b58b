"""Compare the gradient of the multi-token prediction loss of one micro-batch with that of its samples in two."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from matrix.kit import megatron

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

LENGTH, VOCABULARY = 8, 4  # tokens of a sample; logits of a token, which are the hidden states themselves
TOLERANCE = 1e-5  # relative, in float32


class WeightedByMicroBatch(AssertionError):
    """Each micro-batch has the weight of its own counts of tokens."""


class PredictionWrong(AssertionError):
    """The gradients differ in another way."""


def compare(rank: Rank, *, tokens: list[int]) -> float:
    """Return 1 where upstream's loss, per token, has the same gradient for the samples together and apart.

    `tokens` of each sample have a loss, the first ones. finalize_model_grads divides the gradients of both by the same
    number of tokens. Shifted by one, a sample has one token less: together all lose the same share, apart each its own.
    """
    torch = megatron.start(rank)
    from megatron.core.transformer.multi_token_prediction import process_mtp_loss
    from megatron.core.transformer.transformer_config import TransformerConfig

    layer = {"num_layers": 1, "hidden_size": VOCABULARY, "num_attention_heads": 2, "mtp_num_layers": 1}
    config = TransformerConfig(**layer, calculate_per_token_loss=True, use_cpu_initialization=True)
    generator = torch.Generator().manual_seed(megatron.SEED)
    states = torch.randn(LENGTH, len(tokens), VOCABULARY, generator=generator)
    labels = torch.randint(0, VOCABULARY, (len(tokens), LENGTH), generator=generator)
    mask = torch.stack([(torch.arange(LENGTH) < count).float() for count in tokens])

    def gradient(samples: slice) -> Any:
        leaf = states[:, samples].clone().requires_grad_()
        values = {
            "hidden_states": torch.cat([torch.zeros_like(leaf), leaf]),
            "labels": labels[samples],
            "loss_mask": mask[samples],
            "output_layer": lambda hidden, **_: (hidden, None),
            "compute_language_model_loss": lambda targets, logits: torch.nn.functional.cross_entropy(
                logits.permute(1, 2, 0), targets, reduction="none"
            ),
            "config": config,
        }
        others = [
            name for name, one in inspect.signature(process_mtp_loss).parameters.items() if one.default is one.empty
        ]
        process_mtp_loss(**dict.fromkeys(others) | values | {"is_training": False}).sum().backward()
        return leaf.grad

    together = gradient(slice(None))
    apart = torch.cat([gradient(slice(sample, sample + 1)) for sample in range(len(tokens))], dim=1)
    shares = [count / (count - 1) / (sum(tokens) / (sum(tokens) - len(tokens))) for count in tokens]
    weighted = together * torch.tensor(shares).view(1, -1, 1)
    scale = float(together.abs().max())
    megatron.stop()
    if torch.allclose(apart, together, atol=scale * TOLERANCE):
        return 1.0
    figures = f"the gradients of the samples are {', '.join(f'{share:.4f}' for share in shares)} of those together"
    if torch.allclose(apart, weighted, atol=scale * TOLERANCE):
        raise WeightedByMicroBatch(figures)
    raise PredictionWrong("the gradients of the samples differ in another way")
