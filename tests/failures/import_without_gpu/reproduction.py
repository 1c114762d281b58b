"""Import megatron-core on a machine with nvcc and without a GPU."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from matrix.kit.rank import LackError

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

COMPILER = """#!/bin/sh
case "$1" in -*v*) echo 12.0.0 ;; *) exit 1 ;; esac
"""


def import_attention(rank: Rank, *, architectures: str = "") -> str:
    """Return the name of the imported module; `architectures` is TORCH_CUDA_ARCH_LIST.

    The toolkit is a stand-in: torch finds compilers that have a version and compile nothing. Without nvcc, torch raises
    what upstream catches.
    """
    import ninja
    import torch
    from torch.utils import cpp_extension

    if torch.version.cuda is None:
        raise LackError("needs a torch built with CUDA: this one lists no architectures")

    toolkit = rank.workdir / "stand-in-cuda"
    (toolkit / "bin").mkdir(parents=True)
    for name in ("nvcc", "c++"):
        (toolkit / "bin" / name).write_text(COMPILER, encoding="ascii")
        (toolkit / "bin" / name).chmod(0o755)
    cpp_extension.CUDA_HOME = str(toolkit)
    os.environ["CXX"] = str(toolkit / "bin" / "c++")
    os.environ["PATH"] = os.pathsep.join([ninja.BIN_DIR, os.environ["PATH"]])
    os.environ["TORCH_CUDA_ARCH_LIST"] = architectures
    os.environ["TORCH_EXTENSIONS_DIR"] = str(rank.workdir / "extensions")
    from megatron.core.transformer import attention

    return str(attention.__name__)
