"""Let mbridge, of PyPI, take the arguments of a GPT model from a configuration of transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matrix.kit import megatron

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

BASE = 500_000.0  # of the rotary embedding; 10,000 is the default of most models


class BaseWrong(AssertionError):
    """The base of the rotary embedding is not that of the configuration."""


def bridge(rank: Rank, *, attribute: bool = False) -> float:
    """Return the base of the rotary embedding that mbridge passes to GPTModel.

    `attribute`: a configuration of transformers 5 gets back the attribute of transformers 4. Raises BaseWrong for
    another base, and what mbridge raises.
    """
    megatron.start(rank)
    config = configuration()
    if attribute and hasattr(config, "rope_parameters"):
        config.rope_theta = config.rope_parameters["rope_theta"]
    from mbridge import AutoBridge

    base = AutoBridge.from_config(config)._get_gptmodel_args()["rotary_base"]
    megatron.stop()
    if base != BASE:
        raise BaseWrong(f"{base} instead of {BASE}")
    return float(base)


def configuration() -> Any:
    """Return the configuration of a tiny Qwen2, as transformers reads the JSON of a checkpoint of release 4."""
    from transformers import Qwen2Config

    return Qwen2Config.from_dict(
        {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
        | {"intermediate_size": 32, "vocab_size": 64, "rope_theta": BASE, "rope_scaling": None}
    )
