"""Let Transformer Engine's Python compare the version of the cuDNN that torch has loaded with its minimum."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matrix.kit.rank import Rank


def compare_cudnn(rank: Rank) -> str:
    """Call check_cudnn_version, as Transformer Engine's import does, with cuDNN's version; return that version.

    Releases before 2.20 have no such function. Transformer Engine's libraries are not loaded.
    """
    import torch

    version = torch.backends.cudnn.version()
    os.environ["NVTE_PROJECT_BUILDING"] = "1"  # TE's own switch: nothing is loaded by its import
    common = importlib.import_module("transformer_engine.common")
    if compare := getattr(common, "check_cudnn_version", None):
        compare(version)
    return str(version)
