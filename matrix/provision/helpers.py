"""megatron-core's compiled dataset helper, for source trees: PyPI's wheels carry it, trees do not.

GPTDataset and MockGPTDataset (upstream's own training loop) need it; checkpointing and training on tensors do not.
Upstream's `compile_helpers()` runs make inside the package, which an overlay shared by several cells must not see.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from pathlib import Path

from matrix.provision.commands import Runner

SOURCE = Path("megatron/core/datasets/helpers.cpp")

# torch carries pybind11's headers; it is found, not imported.
QUESTION = (
    "import importlib.util, sysconfig as s; torch = importlib.util.find_spec('torch'); "
    "print(s.get_path('include'), s.get_config_var('EXT_SUFFIX'), "
    "torch.submodule_search_locations[0] if torch else '', sep='\\n')"
)


def compiler() -> str | None:
    """Return the C++ compiler's path, None if there is none."""
    return shutil.which("c++") or shutil.which("g++")


def build_helper(folder: Path, interpreter: Path, run: Runner, kept: Path | None = None) -> str:
    """Compile the helper of the megatron-core in `folder` for `interpreter`'s environment, which has torch.

    Takes 6 s (g++ 12, one core); with a folder `kept` for them, once for each source and environment, since hundreds of
    commits have the same one. Returns "" when it is there, otherwise why it is not: a cell that does not use datasets
    runs without it.
    """
    source = folder / SOURCE
    module = re.search(r"PYBIND11_MODULE\((\w+)", source.read_text(encoding="utf-8")) if source.is_file() else None
    if module is None:
        return f"no compiled dataset helper: {SOURCE} is not in this tree"
    tool = compiler()
    if tool is None:
        return "no compiled dataset helper: no C++ compiler (c++, g++) on PATH"
    answer = run([str(interpreter), "-c", QUESTION])
    if answer.code:
        return f"no compiled dataset helper: {interpreter} does not answer: {answer.complaint}"
    include, suffix, torch = answer.out.rstrip("\n").split("\n")
    headers = [f"-I{include}", f"-I{torch}/include"]
    target = source.with_name(module[1] + suffix)
    stamp = Path(torch, "version.py")  # an environment that is made anew may hold another torch
    made_from = source.read_bytes() + "\0".join([answer.out, tool]).encode()
    made_from += stamp.read_bytes() if stamp.is_file() else b""
    known = kept / hashlib.sha256(made_from).hexdigest() if kept else None
    if known and known.is_file():
        shutil.copyfile(known, target)
        return ""
    answer = run([tool, "-O3", "-w", "-shared", "-std=c++17", "-fPIC", *headers, str(source), "-o", str(target)])
    if answer.code:
        return f"no compiled dataset helper: {answer.complaint}"
    if known:
        known.parent.mkdir(parents=True, exist_ok=True)
        part = known.with_name(f"{known.name}.{os.getpid()}")
        shutil.copyfile(target, part)
        part.replace(known)
    return ""
