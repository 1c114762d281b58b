"""Compile megatron-core's dataset helper for source trees; PyPI's wheels contain it, trees do not.

GPTDataset and MockGPTDataset (upstream's own training loop) require it; checkpointing and training on tensors do not.
Upstream's `compile_helpers()` runs make inside the package, which must not happen in an overlay that cells share.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from pathlib import Path

from matrix.read.commands import Runner, python_code

SOURCE = Path("megatron/core/datasets/helpers.cpp")

# torch contains pybind11's headers; its folder is located without importing it.
QUESTION = (
    "import importlib.util, sysconfig as s; torch = importlib.util.find_spec('torch'); "
    "print(s.get_path('include'), s.get_config_var('EXT_SUFFIX'), "
    "torch.submodule_search_locations[0] if torch else '', sep='\\n')"
)


def compiler() -> str | None:
    """Return the path of the C++ compiler, None without one."""
    return shutil.which("c++") or shutil.which("g++")


def build_helper(folder: Path, interpreter: Path, run: Runner, kept: Path | None = None) -> str:
    """Compile the helper of the megatron-core in `folder` for the environment of `interpreter`, which has torch.

    Compiling takes 6 s (g++ 12, one core). The folder `kept` caches results by source and environment: hundreds of
    commits have the same source. Returns "" on success, else the reason; a cell that does not use datasets runs without
    the helper.
    """
    source = folder / SOURCE
    module = re.search(r"PYBIND11_MODULE\((\w+)", source.read_text(encoding="utf-8")) if source.is_file() else None
    if module is None:
        return f"no compiled dataset helper: {SOURCE} is not in this tree"
    tool = compiler()
    if tool is None:
        return "no compiled dataset helper: no C++ compiler (c++, g++) on PATH"
    facts = run(python_code(interpreter, QUESTION))
    if facts.code:
        return f"no compiled dataset helper: {interpreter} fails: {facts.complaint}"
    include, suffix, torch = facts.out.rstrip("\n").split("\n")
    headers = [f"-I{include}", f"-I{torch}/include"]
    target = source.with_name(module[1] + suffix)
    stamp = Path(torch, "version.py")  # a rebuilt environment may hold another torch
    made_from = source.read_bytes() + "\0".join([facts.out, tool]).encode()
    made_from += stamp.read_bytes() if stamp.is_file() else b""
    cached = kept / hashlib.sha256(made_from).hexdigest() if kept else None
    if cached and cached.is_file():
        shutil.copyfile(cached, target)
        return ""
    compiled = run([tool, "-O3", "-w", "-shared", "-std=c++17", "-fPIC", *headers, str(source), "-o", str(target)])
    if compiled.code:
        return f"no compiled dataset helper: {compiled.complaint}"
    if cached:
        cached.parent.mkdir(parents=True, exist_ok=True)
        part = cached.with_name(f"{cached.name}.{os.getpid()}")
        shutil.copyfile(target, part)
        part.replace(cached)
    return ""
