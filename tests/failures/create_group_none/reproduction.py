"""create_group() of megatron-core >= 0.15 for all ranks, which userbuffers require with Transformer Engine < 1.9."""

from __future__ import annotations

from matrix.kit.userbuffers import through_megatron

__all__ = ["through_megatron"]
