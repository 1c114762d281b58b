"""Build a tiny GPT whose experts pad their tokens for FP8."""

from __future__ import annotations

from matrix.kit.gpt import build

__all__ = ["build"]
