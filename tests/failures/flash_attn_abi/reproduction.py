"""Import an extension named flash_attn_2_cuda that was compiled for another torch.

The extension is a small one: it takes one function from torch's libc10_cuda, as flash-attn's does, and has no kernels.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

from matrix.kit import small_extension

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

EXTENSION = "flash_attn_2_cuda"
# The declaration of c10::cuda::SetDevice as c10/cuda/CUDAFunctions.h has it, by the torch that changed it.
PARAMETERS = {"2.7": "signed char", "2.8": "signed char, bool"}
USE = """
namespace c10 { namespace cuda { void SetDevice(%s); } }
void* address = (void*)(void (*)(%s))c10::cuda::SetDevice;
"""


def load(rank: Rank, *, compiled_for: str) -> str:
    """Import the extension that has SetDevice of this torch; return its name."""
    import torch  # noqa: F401  (it loads libc10_cuda)

    folder = rank.workdir / "site-packages"
    folder.mkdir()
    parameters = PARAMETERS[compiled_for]
    small_extension.build(folder, EXTENSION, USE % (parameters, parameters), libraries=["c10_cuda"])
    sys.path.insert(0, str(folder))
    return importlib.import_module(EXTENSION).__name__
