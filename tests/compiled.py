"""A small transformer_engine whose setup.py runs CUDA's compiler or assembler, and a history of it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.real.conftest import COMMAND_S, ROOT
from tests.schemas import items_of
from tests.unit.prove.bisection import repositories

COMMAND = "import transformer_engine; assert transformer_engine.factor() == 2, transformer_engine.factor()"
GOOD, BAD, CULPRIT, BREAKS = "first", "last", "culprit", "breaks"
_SETUP = """
from pathlib import Path
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

class Compile(build_ext):
    def build_extension(self, extension):
        target = Path(self.get_ext_fullpath(extension.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        self.spawn([{words}, "-o", str(target), *extension.sources])

setup(
    name="transformer_engine",
    version="2.7.0",
    packages=["transformer_engine"],
    ext_modules=[Extension("transformer_engine.transformer_engine_torch", ["{kernel}"])],
    cmdclass={{"build_ext": Compile}},
)
"""
_PACKAGE = """
import ctypes
from pathlib import Path

(library,) = Path(__file__).parent.glob("transformer_engine_torch*.so")
"""


@dataclass(frozen=True)
class Compiler:
    """How the kernel is compiled: words of the command, its source with factor and end, code that reads the factor."""

    words: str
    suffix: str
    kernel: str
    read: str


NVCC = Compiler(
    '"nvcc", "-shared", "-Xcompiler", "-fPIC"',
    "cu",
    '\n__global__ void scale(float *x) {{ *x *= {0}; }}\nextern "C" int factor() {{ return {0}{1} }}\n',
    "factor = ctypes.CDLL(str(library)).factor\n",
)
# It needs no C++ compiler; the result can't run without a GPU, but has the factor after these bytes.
PTXAS = Compiler(
    '"ptxas", "-arch=sm_90"',
    "ptx",
    ".version 8.0\n.target sm_90\n.address_size 64\n.visible .global .align 8 .u64 factor = 0x5EED00000000000{0}{1}\n",
    "def factor():\n    return library.read_bytes().partition(bytes.fromhex('0000000000ed5e'))[0][-1]\n",
)


def clone(folder: Path, compiler: Compiler = NVCC) -> Path:
    """Make a clone with a commit that does not build, one that changes the compiled result, and others that can't."""
    kernel, package = f"transformer_engine/common/kernel.{compiler.suffix}", "transformer_engine/__init__.py"
    python = _PACKAGE + compiler.read
    first = {
        "build_tools/VERSION.txt": "2.7.0\n",
        "setup.py": _SETUP.format(words=compiler.words, kernel=kernel),
        package: python,
        kernel: compiler.kernel.format(2, ";"),
    }
    changes = {
        GOOD: first,
        "docs": {"docs/a.rst": "a\n"},
        "comment": {package: f"{python}# a\n"},
        BREAKS: {kernel: compiler.kernel.format(2, "")},
        "repaired": {kernel: compiler.kernel.format(2, " ;")},
        "tests": {"tests/a.py": "a\n"},
        CULPRIT: {kernel: compiler.kernel.format(3, ";")},
        "more-docs": {"docs/b.rst": "b\n"},
        BAD: {package: f"{python}# b\n"},
    }
    names = list(changes)
    history = [(name, names[place - 1 : place] if place else [], changes[name]) for place, name in enumerate(names)]
    return repositories.clone(folder, history)


def bisect(out: Path, clone: Path, *options: str, **environ: str) -> dict[str, Any]:
    """Return the answer for COMMAND; the cache of overlays is new."""
    line = [sys.executable, "-m", "matrix", "bisect", "--axis", "te", "--repo", str(clone), "--good", GOOD]
    line += ["--bad", BAD, "--compile", *options, "--json", "--out", str(out)]
    done = subprocess.run(
        [*line, "--", "python3", "-c", COMMAND],
        cwd=ROOT, capture_output=True, text=True, timeout=COMMAND_S, check=False,
        env={**os.environ, "MEGATRIX_CACHE": str(out / "cache"), **environ},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return items_of(done.stdout, "bisect")[0]


def check(report: dict[str, Any], clone: Path, error: str) -> None:
    """Check that commits of docs and tests are left out, and that the one that does not build is a skip."""
    assert (report["kind"], report["label"].split()[-1]) == ("first-bad", CULPRIT)
    assert any("3 of them left out" in note for note in report["notes"])
    (skip,) = (probe for probe in report["probes"] if probe["seen"] == "skip")
    assert skip["label"].split()[-1] == BREAKS
    assert error in skip["why"]
    assert all(f"--te {clone}@{probe['point']} --compile" in probe["reproduce"] for probe in report["probes"])
