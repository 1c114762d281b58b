"""What a rank does to meet the offload arguments: build a model. Offloading is off; the call is made all the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tests.failures import dcp_assertion, megatron_runtime

if TYPE_CHECKING:
    from matrix.ranks.job import Rank


def build_model(rank: Rank, *, stand_ins: Mapping[str, Sequence[str]] | None = None) -> dict[str, Any]:
    """Build a GPTModel whose blocks ask Transformer Engine for an offload context; return the versions that met.

    Raises what Transformer Engine's own Python raises, and AssertionError when the call was not made at all.
    """
    megatron_runtime.start(rank, tensor_parallel=1, pipeline_parallel=1, stand_ins=stand_ins)
    import transformer_engine
    from transformer_engine.pytorch import cpu_offload

    asked: list[str] = []
    # The call must have reached TE's real function for a pass to mean anything: its first line is made to tell.
    handler = cpu_offload.AsyncDoubleBufferGroupOffloadHandler

    class Telling(handler):  # type: ignore[misc, valid-type]
        def __init__(self, *arguments: Any, **keywords: Any) -> None:
            asked.append("get_cpu_offload_context")
            super().__init__(*arguments, **keywords)

    cpu_offload.AsyncDoubleBufferGroupOffloadHandler = Telling
    dcp_assertion.build_model(rank)
    if not asked:
        raise AssertionError("the model was built and get_cpu_offload_context was not called")
    megatron_runtime.stop()
    return {"transformer_engine": transformer_engine.__version__}
