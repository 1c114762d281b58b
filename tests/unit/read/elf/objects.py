"""Small shared objects and environments for tests: compiled by the system's compiler, laid out in a folder."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

COMPILER = shutil.which("cc") or shutil.which("gcc")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")
LOADS = "import ctypes, sys\nfor path in sys.argv[1:]: ctypes.CDLL(path)\n"


def shared(path: Path, source: str = "int unused;", *options: str) -> Path:
    """Compile C into a shared object."""
    path.parent.mkdir(parents=True, exist_ok=True)
    code = path.with_suffix(".c")
    code.write_text(source)
    words = [str(COMPILER), "-shared", "-fPIC", "-w", str(code), "-Wl,--no-as-needed", *options, "-o", str(path)]
    subprocess.run(words, check=True, capture_output=True)
    code.unlink()
    return path


def library(folder: Path, name: str, source: str = "int unused;", *options: str) -> Path:
    """Compile a library with its file's name as soname."""
    return shared(folder / name, source, f"-Wl,-soname,{name}", *options)


def linker_message(*paths: Path, **environ: str) -> str:
    """Return what the dynamic linker states when a Python opens files one after another, "" for nothing."""
    done = subprocess.run(
        [sys.executable, "-c", LOADS, *map(str, paths)], env=environ, capture_output=True, text=True, check=False
    )
    return done.stderr.strip().splitlines()[-1] if done.returncode else ""


def package(folder: Path, name: str, version: str, *files: str, requires: str = "") -> None:
    """Write the metadata of a package with these files."""
    metadata = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir(parents=True, exist_ok=True)
    more = f"Requires-Dist: {requires}\n" if requires else ""
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{more}")
    (metadata / "RECORD").write_text("".join(f"{file},sha256=x,1\n" for file in files))


def module(folder: Path, package_name: str, name: str, source: str = "", *options: str, version: str = "1.0") -> Path:
    """Compile an extension module of a package."""
    path = shared(folder / f"{name}.abi3.so", f"{source}\nvoid *PyInit_{name}(void) {{ return 0; }}", *options)
    package(folder, package_name, version, path.name)
    return path
