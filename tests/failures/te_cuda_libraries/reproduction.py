"""Load the core library of PyPI's Transformer Engine, as its Python does, beside the CUDA libraries of PyPI's torch."""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matrix.kit.rank import Rank


def load(rank: Rank, *, loader: str, cudnn: bool = False) -> str:
    """Load libtransformer_engine.so with the function `loader` of transformer_engine.common; return its path.

    torch has loaded its own CUDA libraries before, Transformer Engine cuDNN. The package of the case that has NVRTC is
    loaded, too: no function of it is called. `cudnn`: all of cuDNN's libraries, which releases before 2.4 leave out.
    """
    import torch  # noqa: F401

    sys.modules.pop("transformer_engine", None)  # hidden, as the cell names none: it is a package of the case
    os.environ["NVTE_PROJECT_BUILDING"] = "1"  # TE's own switch: nothing is loaded by its import
    common = importlib.import_module("transformer_engine.common")
    common._load_cudnn()
    packages = [Path(folder, "nvidia", "cu13", "lib") for folder in rank.overlays]
    load_all(path for folder in packages for path in folder.glob("libnvrtc.so.*"))
    if cudnn:
        load_all(Path(sysconfig.get_path("purelib"), "nvidia", "cudnn", "lib").glob("libcudnn*.so.*[0-9]"))
    return str(getattr(common, loader)()._name)


def load_all(libraries: Iterable[Path]) -> None:
    """Load libraries as torch and Transformer Engine load CUDA's: their names and symbols are then there for others."""
    for path in sorted(libraries):
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
