"""Compile a small extension module against the torch of a cell: real code whose symbols the dynamic linker resolves.

A reproduction of a failed load needs no more of an extension than its name and the symbols that it takes from torch's
libraries. Compiling one that uses c10's macros takes 0.5 s and 0.15 GiB (g++ 12, one core).
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from matrix.kit.rank import LackError


def build(folder: Path, name: str, source: str, *, macros: Sequence[str] = (), libraries: Sequence[str] = ()) -> Path:
    """Compile a module of this name into `folder`, linked to these libraries of torch; return its path.

    `source` is its C++ without the initialisation of the module, `macros` are definitions ("NAME=1"). A rank's PATH has
    no compiler: it is looked for where the system has its programs. Raises LackError without a compiler or with one
    that fails.
    """
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.submodule_search_locations is None:
        raise LackError("needs torch, whose headers and libraries the extension uses")
    home = Path(next(iter(torch.submodule_search_locations)))
    compiler = shutil.which("c++", path=os.defpath) or shutil.which("g++", path=os.defpath)
    if compiler is None:
        raise LackError("needs a C++ compiler (Debian, Ubuntu: apt-get install g++)")
    code, target = folder / f"{name}.cpp", folder / f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}"
    code.write_text(f"{source}\n{_module(name)}", encoding="utf-8")
    words = [compiler, "-w", "-shared", "-fPIC", "-std=c++17", *[f"-D{macro}" for macro in macros]]
    words += [f"-I{home / 'include'}", f"-I{sysconfig.get_path('include')}", str(code), f"-L{home / 'lib'}"]
    # Some compilers leave out libraries whose symbols are not used, and with them those that lack the symbol.
    words += ["-Wl,--no-as-needed", *[f"-l{library}" for library in libraries], "-o", str(target)]
    environment = {**os.environ, "PATH": os.defpath}  # for the assembler and the linker
    result = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    if result.returncode:
        raise LackError(f"needs a C++ compiler with the headers of Python: {result.stderr.strip()[-500:]}")
    return target


def _module(name: str) -> str:
    return f"""
#include <Python.h>
static PyModuleDef definition = {{PyModuleDef_HEAD_INIT, "{name}", nullptr, -1, nullptr}};
PyMODINIT_FUNC PyInit_{name}(void) {{ return PyModule_Create(&definition); }}
"""
