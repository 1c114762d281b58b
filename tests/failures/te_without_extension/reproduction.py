"""Import Transformer Engine as PyPI's transformer-engine alone provides it: Python without transformer_engine_torch.

Transformer Engine and megatron-core are real. NVTE_PROJECT_BUILDING=1, Transformer Engine's own switch, stands for an
installed transformer-engine-cu12 or -cu13: the search for CUDA's libraries and the core library is left out.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING

from matrix.kit import te_extension

if TYPE_CHECKING:
    from matrix.kit.rank import Rank


def import_alone(rank: Rank) -> str:
    """Import transformer_engine without any library; return the name of its module for torch."""
    return importlib.import_module("transformer_engine.pytorch").__name__


def import_with_core(rank: Rank) -> str:
    """Import transformer_engine.pytorch as if the core library were installed; return its name."""
    os.environ["NVTE_PROJECT_BUILDING"] = "1"
    return importlib.import_module("transformer_engine.pytorch").__name__


def import_megatron(rank: Rank, *, unloadable: bool = False) -> str:
    """Import megatron-core's layers of Transformer Engine; return the name of their module.

    `unloadable`: there is an extension, an empty file, which the dynamic linker refuses with an ImportError.
    """
    os.environ["NVTE_PROJECT_BUILDING"] = "1"
    if unloadable:
        te_extension.link(rank.workdir)
        (rank.workdir / "transformer_engine_torch.abi3.so").touch()
        sys.path.insert(0, str(rank.workdir))
    return importlib.import_module("megatron.core.extensions.transformer_engine").__name__


def import_with_extension(rank: Rank) -> str:
    """Import transformer_engine.pytorch beside a stand-in for its extension; return its name."""
    te_extension.install(rank.workdir / "extension")
    return importlib.import_module("transformer_engine.pytorch").__name__


def import_copied(rank: Rank) -> str:
    """Import a transformer_engine that is a folder on sys.path, such as a clone, and not installed; return its name."""
    te_extension.link(rank.workdir)
    sys.path[:] = [str(rank.workdir), *(folder for folder in sys.path if folder not in rank.overlays)]
    importlib.invalidate_caches()
    os.environ["NVTE_PROJECT_BUILDING"] = "1"
    return importlib.import_module("transformer_engine").__name__
