"""Start userbuffers of Transformer Engine alone, with UB_SKIPMC unset, on GPUs without CUDA Multicast."""

from __future__ import annotations

from matrix.kit.userbuffers import through_transformer_engine

__all__ = ["through_transformer_engine"]
