"""Import Transformer Engine with an extension that was compiled with one of libstdc++'s two ABIs.

Transformer Engine's Python and its loader are real. The extension is a small one of its name: it has one TORCH_CHECK,
which c10's header compiles, and none of the kernels.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING

from matrix.kit import small_extension, te_extension

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

EXTENSION = "transformer_engine_torch"
CHECK = """
#include <c10/util/Exception.h>
void check(int64_t size) { TORCH_CHECK(size > 0, std::string("size "), size); }
"""


def load(rank: Rank, *, cxx11: bool) -> str:
    """Import transformer_engine.pytorch beside an extension of that ABI; return the name of the loaded extension.

    What TE's Python needs of the extension afterwards is missing, so the import ends with another exception then.
    """
    folder = rank.workdir / "site-packages"
    folder.mkdir()
    macros = [f"_GLIBCXX_USE_CXX11_ABI={int(cxx11)}"]
    small_extension.build(folder, EXTENSION, CHECK, macros=macros, libraries=["c10"])
    te_extension.link(folder)
    sys.path.insert(0, str(folder))
    os.environ["NVTE_PROJECT_BUILDING"] = "1"  # TE's own switch: libtransformer_engine.so and CUDA's are not loaded
    try:
        importlib.import_module("transformer_engine.pytorch")
    except Exception:
        if EXTENSION not in sys.modules:
            raise
    return sys.modules[EXTENSION].__name__
