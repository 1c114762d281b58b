"""The API of a provider, read from its sources."""

from __future__ import annotations

import pytest

from matrix.read.api.api import Entry
from matrix.read.api.comparison import find
from matrix.read.api.offering import is_part
from matrix.read.api.provider import TORCH
from tests.unit.read.api.sources import breaks, core, project, te, torch, used_torch


@pytest.mark.parametrize(
    ("text", "entry"),
    [
        ("def f(a, *, b=1): ...", "(a,*,b=1)"),
        ("async def f(a): ...", "(a)"),
        ("f = 1", "="),
        ("f: int = 1", "="),
        ("f: int", None),
        ("f = make()", "~"),
        ("f, g = 1, 2", "="),
        ("import os as f", "~"),
        ("import transformer_engine.pytorch.a as f", ">transformer_engine.pytorch.a:"),
        ("from . import a as f", ">transformer_engine.pytorch.a:"),
        ("from .a import x as f", ">transformer_engine.pytorch.a:x"),
        ("from os import path as f", "~"),
        ("from . import a\nf = a.x", ">transformer_engine.pytorch.a:x"),
        ("for f in (1, 2): ...", "="),
        ("if TYPE_CHECKING:\n    from .a import x as f\nelse:\n    def f(a): ...", "(a)"),
        ("while True:\n    f = 1", "="),
        ("with open('x') as file:\n    def f(a): ...", "(a)"),
        ("if x:\n    def f(a): ...\nelse:\n    def f(a, b): ...", ["(a)", "(a,b)"]),
        ("if x:\n    def f(a): ...\nelse:\n    raise ImportError", "(a)"),
        ("def f(a, b): ...\nif x:\n    def f(a): ...\nelse:\n    raise ImportError", "(a)"),
        ("if TYPE_CHECKING:\n    def f(a): ...", None),
        (
            "try:\n    from .a import x as f\nexcept ImportError:\n    f = None",
            [">transformer_engine.pytorch.a:x", "="],
        ),
        ("try:\n    pass\nfinally:\n    f = 1", "="),
    ],
)
def test_statement_defines_an_entry(text: str, entry: Entry) -> None:
    surface = te({"pytorch/__init__.py": text, "pytorch/a.py": "x = 1"})

    assert surface.modules["transformer_engine.pytorch"].get("f") == entry


def test_compiled_names_come_from_the_pybind_source() -> None:
    source = 'PYBIND11_MODULE(N, m) { m.def("cast", &cast); py::enum_<DType>(m, "DType", py::module_local()); }'
    surface = te({"pytorch/__init__.py": "from transformer_engine_torch import *", "pytorch/csrc/pybind.cpp": source})
    assert surface.offers("transformer_engine.pytorch:cast") is True
    assert surface.offers("transformer_engine.pytorch:DType") is True
    assert surface.offers("transformer_engine.pytorch:gone") is False


def test_surface_excludes_other_frameworks() -> None:
    parts = ["__init__.py", "pytorch/a.py", "pytorch/csrc/pybind.cpp"]
    assert all(is_part(f"transformer_engine/{path}") for path in parts)
    assert not any(
        is_part(path) for path in ("setup.py", "transformer_engine/jax/a.py", "transformer_engine/jax/csrc/p.cpp")
    )


def test_added_public_names_are_exported() -> None:
    own = "__all__ = ['a']\ndef a(): ...\ndef b(): ...\n__all__ += ['b']\n"
    surface = torch({"checkpoint/api.py": own, "checkpoint/__init__.py": "from .api import *\n"})

    assert breaks(project("from torch.distributed.checkpoint import a, b\n", TORCH), surface) == []


def test_attribute_of_a_module_level_object_is_found() -> None:
    mesh = """
    import threading
    class _MeshEnv(threading.local):
        def __init__():
            self.mesh_stack = []
    _mesh_resources: _MeshEnv = _MeshEnv()
    """
    fork = project(
        "from torch.distributed.device_mesh import _mesh_resources as m\n"
        "m.mesh_stack.append(1)\nm.child_to_root_mapping.items()\n",
        TORCH,
    )

    assert breaks(fork, torch({"device_mesh.py": mesh})) == [
        ("definite", "'_MeshEnv' object has no attribute 'child_to_root_mapping'")
    ]


@pytest.mark.parametrize(
    ("files", "entry"),
    [
        ({"onnx.py": "def f(a): ..."}, "(a)"),
        ({"onnx.py": "class f: ..."}, "~"),
        ({"onnx.py": "if x:\n    def f(a): ...\nelse:\n    def f(a, b): ..."}, "~"),
        ({"onnx.py": "from torch.functional import *", "functional.py": "def f(a, b): ..."}, ">torch.functional:f"),
        ({"onnx.py": "from torch.functional import *", "functional.py": "__all__ = ['g']\ndef f(a): ..."}, "!"),
        ({"onnx.py": "from torch._C import *", "_C/__init__.pyi": "def f(a): ..."}, ">torch._C:f"),
        ({"onnx.py": "from torch._C import *", "_C/__init__.pyi": "def g(a): ..."}, "!"),
        ({"onnx.py": "globals().update(g)", "lib/libtorch_python.so": "\x00f\x00"}, "~"),
        ({"onnx.py": "globals().update(g)", "lib/libtorch_python.so": "\x00ff\x00"}, "!"),
        ({"onnx.py": "def __getattr__(name): ...", "other.py": "f = 1"}, "~"),
        ({"onnx.py": "x = 1", "other.py": "f = 1"}, "!"),
        ({"onnx/__init__.py": "x = 1", "onnx/f.py": ""}, None),
    ],
)
def test_used_name_of_a_sparse_module_is_recorded(files: dict[str, str], entry: Entry) -> None:
    surface = used_torch(files, "torch.onnx:f")

    assert surface.modules["torch.onnx"].get("f") == entry
    assert surface.offers("torch.onnx:f") is (entry != "!")
    assert surface.offers("torch.onnx:unused") is None


def test_reexported_name_is_recorded_where_it_is_defined() -> None:
    files = {
        "__init__.py": "from torch.nn import layers as f",
        "nn/__init__.py": "from .b import layers",
        "nn/b.py": "",
    }
    surface = used_torch({**files, "nn/b.py": "def layers(a): ..."}, "torch:f")
    call = project("import torch\ntorch.f(1, 2)\n", TORCH)

    assert breaks(call, surface) == [
        ("definite", "layers() takes 1 positional argument but 2 were given"),
    ]
    assert breaks(call, used_torch(files, "torch:f")) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("from torch.onnx import gone", "cannot import name 'gone' from 'torch.onnx'"),
        ("import torch.gone.part", "No module named 'torch.gone'"),
        ("from torch.gone.part import f", "No module named 'torch.gone'"),
        ("import torch\ntorch.gone.part.f(1)", "module 'torch' has no attribute 'gone'"),
    ],
)
def test_missing_name_of_a_sparse_module_breaks(text: str, message: str) -> None:
    calls = project(text, TORCH)
    used = [use.path for use in calls.uses]

    assert breaks(calls, used_torch({"onnx.py": ""}, *used)) == [("definite", message)]
    assert breaks(calls, used_torch({"onnx.py": ""})) == []


@pytest.mark.parametrize(
    ("stub", "kinds"),
    [
        ("def is_autocast_enabled() -> bool: ...", ["definite"]),
        ("@overload\ndef is_autocast_enabled(device: str) -> bool: ...\n@overload\ndef is_autocast_enabled(): ...", []),
        ("def other() -> bool: ...", []),
    ],
)
def test_stub_of_a_compiled_function_has_its_signature(stub: str, kinds: list[str]) -> None:
    """TE 1.13 passes a device to torch.is_autocast_enabled, which takes none before torch 2.4."""
    files = {"__init__.py": "from torch._C import *\n", "_C/__init__.pyi": f"from typing import overload\n{stub}\n"}
    surface = used_torch({**files, "other.py": "# is_autocast_enabled\n"}, "torch:is_autocast_enabled")
    calls = project("import torch\ntorch.is_autocast_enabled('cuda')\n", TORCH)
    assert [finding.kind.value for finding in find(calls, surface)] == kinds


def test_stub_without_all_names_of_parameters_is_unknown() -> None:
    files = {"__init__.py": "from torch._C._VariableFunctions import *\n", "_C/__init__.pyi": ""}
    stub = {"_C/_VariableFunctions.pyi": "def cat(tensors, dim=0): ...\n"}
    surface = used_torch({**files, **stub}, "torch:cat")
    assert find(project("import torch\ntorch.cat([], axis=1)\n", TORCH), surface) == []


def test_name_of_an_outside_star_is_unknown() -> None:
    """torch.multiprocessing has the names of Python's own module."""
    files = {"__init__.py": "", "multiprocessing/__init__.py": "from multiprocessing import *\n"}
    surface = used_torch(files, "torch.multiprocessing:JoinableQueue")

    assert surface.modules["torch.multiprocessing"]["JoinableQueue"] == "~"


def test_module_that_is_replaced_has_unknown_names() -> None:
    """transformers loads its names on use; a submodule that is not there is missing all the same."""
    lazy = "import sys\nsys.modules[__name__] = Lazy(__name__)\n"
    surface = core({"a/__init__.py": lazy, "a/b.py": "def f(): ..."})

    assert surface.lookup("megatron.core.a:gone") is None
    assert surface.offers("megatron.core.a.b:f")
    assert surface.offers("megatron.core.a.gone:f") is False
