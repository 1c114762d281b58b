"""What upstream logs beside the loss: the auxiliary losses of experts and the losses of multi-token prediction."""

from __future__ import annotations

from typing import Any

from matrix.kit.parity.factors import Point
from matrix.kit.parity.tiny_model import accepted

# The names that upstream's training.py gives to track_moe_metrics: what is not named is not summed over the stages.
NAMES = {
    "aux_loss": "load_balancing_loss",
    "seq_aux_loss": "seq_load_balancing_loss",
    "global_aux_loss": "global_load_balancing_loss",
}


class Writer:
    """Takes what upstream writes for TensorBoard."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def add_scalar(self, name: str, value: Any, *_: Any) -> None:
        """Take one value."""
        self.values[name] = float(value)


def logged(point: Point, config: Any) -> dict[str, float]:
    """Return what this rank would write, by name. All ranks call it: upstream sums over them."""
    from megatron.core.transformer.moe import moe_utils

    writer, scale = Writer(), 1 / point.count("micro_batches")
    names = [NAMES[str(point["balancing"])]] if point["balancing"] in NAMES else []
    names += ["z_loss"] if point["z_loss"] else []
    if point["experts"] and names and hasattr(moe_utils, "track_moe_metrics"):
        options = {
            "force_initialize": True,
            "track_names": names,
            "num_layers": config.num_layers,
            "moe_layer_freq": getattr(config, "moe_layer_freq", 1),
            "mtp_num_layers": getattr(config, "mtp_num_layers", None),
        }
        function = moe_utils.track_moe_metrics
        options = accepted(function, options, **options)
        function(loss_scale=scale, iteration=0, writer=writer, wandb_writer=None, total_loss_dict=None, **options)
    if point["mtp"]:
        from megatron.core.transformer.multi_token_prediction import MTPLossLoggingHelper

        MTPLossLoggingHelper.track_mtp_metrics(scale, 0, writer)
    return writer.values
