"""Compile the kernel that orders the tokens of experts; triton needs no GPU for that."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

MODULES = ("common/triton/permutation.py", "pytorch/triton/permutation.py")  # from 2.10 on; up to 2.9
KERNEL = "_row_id_map_pass_3_kernel"  # sorts the experts of a token
EXPERTS = 4


def compile_kernel(rank: Rank) -> list[str]:
    """Return the stages to which triton has compiled Transformer Engine's kernel, for an H100. No stand-in."""
    os.environ["TRITON_CACHE_DIR"] = str(rank.workdir / "triton")
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    spec = importlib.util.find_spec("transformer_engine")
    folders = (spec and spec.submodule_search_locations) or ()
    path = next(file for folder in folders for name in MODULES if (file := Path(folder, name)).is_file())
    loader = importlib.util.spec_from_file_location("permutation_kernels", path)
    if loader is None or loader.loader is None:
        raise ImportError(f"{path} can't be loaded")
    kernels = importlib.util.module_from_spec(loader)
    loader.loader.exec_module(kernels)
    kernel = getattr(kernels, KERNEL)
    constants = {"num_experts": EXPERTS, "LOAD_SIZE": EXPERTS}
    types = {name: "*i32" if name.endswith("_ptr") else "i32" for name in kernel.arg_names}
    source = ASTSource(
        fn=kernel,
        signature={**types, **dict.fromkeys(constants, "constexpr")},
        constexprs={(kernel.arg_names.index(name),): value for name, value in constants.items()},
    )
    return list(triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm)
