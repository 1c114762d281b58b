"""A small transformer_engine whose setup.py compiles a kernel with nvcc, and a history of it."""

from __future__ import annotations

from pathlib import Path

from tests.unit.bisection import repositories

SETUP = """
from pathlib import Path
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

class Nvcc(build_ext):
    def build_extension(self, extension):
        target = Path(self.get_ext_fullpath(extension.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        self.spawn(["nvcc", "-shared", "-Xcompiler", "-fPIC", "-o", str(target), *extension.sources])

setup(
    name="transformer_engine",
    version="2.7.0",
    packages=["transformer_engine"],
    ext_modules=[Extension("transformer_engine.transformer_engine_torch", ["transformer_engine/common/kernel.cu"])],
    cmdclass={"build_ext": Nvcc},
)
"""
PACKAGE = """
import ctypes
from pathlib import Path

(_library,) = Path(__file__).parent.glob("transformer_engine_torch*.so")
factor = ctypes.CDLL(str(_library)).factor
"""
KERNEL = """
__global__ void scale(float *x) {{ *x *= {0}; }}
extern "C" int factor() {{ return {0}{1} }}
"""
COMMAND = "import transformer_engine; assert transformer_engine.factor() == 2, transformer_engine.factor()"
GOOD, BAD, CULPRIT, BREAKS = "first", "last", "culprit", "breaks"


def clone(folder: Path) -> Path:
    """Make a clone with a commit that does not build, one that changes the compiled result, and others that can't."""
    kernel, package = "transformer_engine/common/kernel.cu", "transformer_engine/__init__.py"
    first = {
        "build_tools/VERSION.txt": "2.7.0\n",
        "setup.py": SETUP,
        package: PACKAGE,
        kernel: KERNEL.format(2, ";"),
    }
    changes = {
        GOOD: first,
        "docs": {"docs/a.rst": "a\n"},
        "comment": {package: f"{PACKAGE}# a\n"},
        BREAKS: {kernel: KERNEL.format(2, "")},
        "repaired": {kernel: KERNEL.format(2, " + 0;")},
        "tests": {"tests/a.py": "a\n"},
        CULPRIT: {kernel: KERNEL.format(3, ";")},
        "more-docs": {"docs/b.rst": "b\n"},
        BAD: {package: f"{PACKAGE}# b\n"},
    }
    names = list(changes)
    history = [(name, names[place - 1 : place] if place else [], changes[name]) for place, name in enumerate(names)]
    return repositories.clone(folder, history)
