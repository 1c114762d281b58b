"""Megatrix: known Megatron-LM x Transformer Engine x PyTorch x driver failures, kept as executable claims."""

from pathlib import Path
from typing import Final

__version__: Final = "0.1.0"
PACKAGE: Final = Path(__file__).resolve().parent  # its parent is the checkout, or site-packages
