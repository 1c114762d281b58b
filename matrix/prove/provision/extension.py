"""Build a source tree of Transformer Engine with its compiled extension, in a base that has nvcc.

Only the paths that the build takes (Layout.build) are written to the folder in which it runs, so that commits that
differ elsewhere give the same result.

Compile megatron-core's dataset helper for source trees; PyPI's wheels contain it, trees do not.

GPTDataset and MockGPTDataset (upstream's own training loop) require it; checkpointing and training on tensors do not.
Upstream's `compile_helpers()` runs make inside the package, which must not happen in an overlay that cells share.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import zipfile
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Final

from matrix.ground.errors import MatrixError
from matrix.read.commands import CommandResult, Runner, python_code, redacted
from matrix.read.git import Repository
from matrix.read.machine.installed import CUDA, NVCC, build_variables, nvcc, version_text
from matrix.read.package_source import Contents, SourceKind, add_metadata
from matrix.read.trees import copy_files, package_files

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


# Runs a command in the base, where this folder is writable; its two outputs are one.
RunInBase = Callable[[Sequence[str], Path], CommandResult]

SHOWN: Final = 6  # lines of a failed build
_ERROR: Final = re.compile(r"\b(error|fatal)\b|undefined reference|No such file", re.I)
# The base needs neither pip nor a network: its setuptools builds a wheel.
_BUILD: Final = f"""\
import os, sys
os.dup2(1, 2)
os.environ["PATH"] += os.pathsep + os.environ.setdefault("CUDA_HOME", {CUDA!r}) + "/bin"
os.chdir(sys.argv[1])
from setuptools.build_meta import __legacy__ as setuptools
setuptools.build_wheel("dist")
"""


def toolkit(features: Collection[str] | None, where: str, image: str = "") -> str:
    """Return what a build depends on besides its source: the version of nvcc or the digest of the image; variables.

    Raises MatrixError for a base without nvcc.
    """
    if NVCC not in (features or ()):
        raise MatrixError(
            "no CUDA compiler in this base",
            where=where,
            got=f"no nvcc on PATH, in CUDA_HOME or {CUDA}",
            expected="a CUDA toolkit, with which --compile builds Transformer Engine's extension",
            fix="install CUDA's toolkit and set CUDA_HOME, use an image that has it, or leave --compile out: "
            "level cpu has a stand-in",
        )
    made_from = {name: value for name, value in build_variables().items() if name != "MAX_JOBS"}
    return f"{image or version_text(nvcc() or NVCC)} {made_from or ''}".strip()


def run_here(run: Runner) -> RunInBase:
    """Return the function that runs a build on this machine."""
    return lambda command, folder: run(command, environment={**os.environ, **build_variables()})


def build(content: Contents, tree: Path, folder: Path, python: str, run: RunInBase) -> None:
    """Build a source tree in the new folder `tree` and put the package into `folder`, as if it were installed.

    Raises MatrixError with the last errors of the compiler.
    """
    absent = export(content, tree)
    ended = run(python_code(python, _BUILD, str(tree)), tree)
    wheels = list((tree / "dist").glob("*.whl"))
    if ended.code or len(wheels) != 1:
        raise MatrixError(
            f"Transformer Engine {content.version} does not build",
            got=compiler_errors(ended),
            expected=f"these submodules, which the clone lacks: {', '.join(absent)}" if absent else None,
            fix="git submodule update --init" if absent else None,
        )
    with zipfile.ZipFile(wheels[0]) as wheel:
        wheel.extractall(folder)
    for info in folder.glob("*.dist-info"):
        shutil.rmtree(info)
    add_metadata(content, folder)


def compiler_errors(ended: CommandResult) -> str:
    """Return the last lines of a failed build that state an error, else its last lines."""
    lines = redacted(ended.out + ended.err).splitlines()
    return "\n".join([line for line in lines if _ERROR.search(line)][-SHOWN:] or lines[-SHOWN:]) or ended.complaint


def export(content: Contents, tree: Path) -> list[str]:
    """Write what the build takes from a source into `tree`; return the submodules that the clone lacks."""
    source = content.source
    if source.kind is SourceKind.GIT:
        _, commit, _ = content.identity.split()
        with Repository(source.location) as clone:
            clone.write(commit, "", tree, lambda path: path.partition("/")[0] in source.layout.build)
            return clone.write_submodules(commit, source.layout.submodules, tree)
    root = Path(source.location)
    for path in (root / name for name in source.layout.build):
        copy_files(package_files(path) if path.is_dir() else [path] if path.is_file() else [], root, tree)
    return []
