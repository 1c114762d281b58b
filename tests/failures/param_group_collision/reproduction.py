"""Save and load an optimizer whose groups differ in their learning rate alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matrix.kit import megatron

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

RATE, DECOUPLED = 1e-3, 1e-4  # max_lr of the layers; of embedding and output layer


class RateOverwritten(AssertionError):
    """After the load, a group has the learning rate of another group."""


class RatesWrong(AssertionError):
    """After the load, the rates are wrong in another way."""


def save_and_load(rank: Rank, *, decoupled: bool) -> list[float]:
    """Return the largest learning rate of each group, which is that before state_dict and load_state_dict.

    The overrides are those of Megatron-LM's training with and without --decoupled-lr; optimizer and groups are real.
    """
    torch = megatron.start(rank)
    optimizer = build(rank, torch, DECOUPLED if decoupled else None)
    saved = [group["max_lr"] for group in optimizer.param_groups]
    optimizer.load_state_dict(optimizer.state_dict())
    loaded = [group["max_lr"] for group in optimizer.param_groups]
    megatron.stop()
    if loaded == saved:
        return loaded
    if set(loaded) < set(saved):
        raise RateOverwritten(f"the groups had the learning rates {saved}; after the load they have {loaded}")
    raise RatesWrong(f"{loaded} instead of {saved}")


def build(rank: Rank, torch: Any, decoupled: float | None) -> Any:
    """Return the optimizer of a layer and an embedding, for each of which upstream makes its own group if needed."""
    from megatron.core.optimizer import OptimizerConfig, _get_param_groups, get_standard_config_overrides
    from megatron.core.optimizer.optimizer import FP32Optimizer

    device, names = megatron.device(rank), ("layer", "embedding")
    model = torch.nn.ParameterDict({name: torch.nn.Parameter(torch.ones(4, 4, device=device)) for name in names})
    model["embedding"].is_embedding_or_output_parameter = True
    config = OptimizerConfig(optimizer="adam", lr=RATE, min_lr=0.0, decoupled_lr=decoupled, decoupled_min_lr=0.0)
    groups = _get_param_groups([model], config, get_standard_config_overrides(config))
    return FP32Optimizer(torch.optim.Adam(groups, lr=RATE), config, lambda *_: None)
