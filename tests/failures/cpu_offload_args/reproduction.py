"""Build a model in a rank, which passes the offload arguments. Offloading is off; the call is made nevertheless."""

from __future__ import annotations

import sys
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from matrix.kit import gpt, megatron

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

CALLEE: Final = ("transformer_engine/pytorch/cpu_offload.py", "get_cpu_offload_context")


def build_model(rank: Rank) -> dict[str, Any]:
    """Build a GPTModel whose blocks get an offload context from Transformer Engine; return its version.

    Raises what Transformer Engine's own Python raises, and AssertionError when the call was not made at all.
    """
    megatron.start(rank)
    import transformer_engine

    calls: list[str] = []

    def watch(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_name == CALLEE[1] and code.co_filename.endswith(CALLEE[0]):
            calls.append(code.co_name)

    # The call must have reached TE's real function for a pass to mean anything.
    sys.setprofile(watch)
    try:
        gpt.build_model(rank)
    finally:
        sys.setprofile(None)
    if not calls:
        raise AssertionError("the model was built and get_cpu_offload_context was not called")
    megatron.stop()
    return {"transformer_engine": transformer_engine.__version__}
