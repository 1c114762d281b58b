"""Start userbuffers under a launcher, over a bootstrap backend."""

from __future__ import annotations

from matrix.kit.userbuffers import through_megatron, through_transformer_engine

__all__ = ["through_megatron", "through_transformer_engine"]
