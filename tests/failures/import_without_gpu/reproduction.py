"""Import megatron-core where a CUDA toolkit is installed and no GPU is visible."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matrix.kit.rank import Rank


def import_core(rank: Rank, *, architectures: str = "") -> str:
    """Return the version of megatron-core that was imported, with these architectures in torch's variable.

    The toolkit is an empty folder, and ninja reports its version alone: the failure comes before anything is compiled.
    """
    ninja = rank.workdir / "ninja"
    ninja.write_text("#!/bin/sh\necho 1.11.1\n", encoding="utf-8")
    ninja.chmod(0o755)
    os.environ |= {"CUDA_HOME": str(rank.workdir), "TORCH_EXTENSIONS_DIR": str(rank.workdir)}
    os.environ |= {"PATH": f"{rank.workdir}:/usr/bin:/bin", "TORCH_CUDA_ARCH_LIST": architectures}
    sys.modules.pop("torch.utils.cpp_extension", None)  # it reads CUDA_HOME when it is imported
    import megatron.core

    return str(megatron.core.__version__)
