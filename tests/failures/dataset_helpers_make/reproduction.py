"""Compile megatron-core's dataset helpers as upstream's compile_helpers does: with make, in the package's folder."""

from __future__ import annotations

import importlib
import os
import shutil
import sysconfig
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from matrix.kit.pretrain import write_tree
from matrix.kit.rank import LackError

if TYPE_CHECKING:
    from matrix.kit.rank import Rank

FOLDER = "megatron/core/datasets"


def compile_in_wheel(rank: Rank) -> str:
    """Call compile_helpers of the installed package; return its folder."""
    with_make()
    from megatron.core.datasets import utils

    utils.compile_helpers()
    return str(Path(utils.__file__).parent)


def compile_in_tree(rank: Rank, *, of_torch: bool = False) -> str:
    """Call compile_helpers in a source tree of the same release; return its folder.

    `of_torch`: the compiler finds torch's copy of pybind11's headers.
    """
    with_make()
    from megatron.core.datasets import utils

    tag = f"core_v{version('megatron-core')}"
    write_tree(rank.clones["megatron-lm"], tag, rank.workdir, lambda path: path.startswith(FOLDER))
    utils.__file__ = str(rank.workdir / FOLDER / "utils.py")  # compile_helpers runs make beside it
    os.environ["MAKEFLAGS"] = f"LIBEXT={sysconfig.get_config_var('EXT_SUFFIX')}"  # as this Python's config states it
    os.environ["CPLUS_INCLUDE_PATH"] = sysconfig.get_path("include")
    if of_torch:
        torch = importlib.import_module("torch").__file__ or ""
        os.environ["CPLUS_INCLUDE_PATH"] += f"{os.pathsep}{Path(torch).parent / 'include'}"
    utils.compile_helpers()
    return str(rank.workdir / FOLDER)


def import_compiled(rank: Rank) -> str:
    """Import the compiled helpers of the installed package; return their name."""
    return importlib.import_module("megatron.core.datasets.helpers_cpp").__name__


def with_make() -> None:
    """Add the system's programs to PATH, which has the interpreter's alone. Raises LackError without make or g++."""
    os.environ["PATH"] += f"{os.pathsep}{os.defpath}"
    if not all(map(shutil.which, ("make", "g++"))):
        raise LackError("needs make and g++ (Debian, Ubuntu: apt-get install make g++)")
