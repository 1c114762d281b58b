"""Megatrix: known Megatron-LM x Transformer Engine x PyTorch x driver failures, kept as executable claims."""

from typing import Final

__version__: Final = "0.1.0"
