"""Build a tiny GPT of Transformer Engine's layers."""

from __future__ import annotations

from matrix.kit.gpt import build

__all__ = ["build"]
