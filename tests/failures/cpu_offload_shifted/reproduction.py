"""Build a tiny GPT, and look at what its offload arguments have become in Transformer Engine."""

from __future__ import annotations

import sys
from types import FrameType
from typing import TYPE_CHECKING, Any

from matrix.kit import gpt, megatron

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

CALLEE = ("cpu_offload.py", "get_cpu_offload_context")


class Misbound(AssertionError):
    """An argument is bound to another parameter than the caller intends."""


def build(rank: Rank) -> list[str]:
    """Return the parameters of Transformer Engine's function, nothing replaced.

    Raises Misbound where the number of layers is a flag, and AssertionError when the call was not made at all.
    """
    megatron.start(rank)
    calls: list[dict[str, Any]] = []

    def watch(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name == CALLEE[1] and frame.f_code.co_filename.endswith(CALLEE[0]):
            calls.append(dict(frame.f_locals))

    sys.setprofile(watch)
    try:
        gpt.build_te_model(rank)
    finally:
        sys.setprofile(None)
    megatron.stop()
    if not calls:
        raise AssertionError("the model was built and get_cpu_offload_context was not called")
    if isinstance(calls[0].get("model_layers"), bool):
        raise Misbound("'cpu_offloading_activations' lands on 'model_layers'")
    return list(calls[0])
