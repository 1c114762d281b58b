"""The API of a release, read from source text and looked up by path."""

import pytest

from matrix.read.api.api import Absent, ResolvedPath, Surface
from tests.unit.read.api.sources import te

PYTORCH = """
    import torch
    from transformer_engine.pytorch.module import Linear as Dense
    from .fp8 import *
    from transformer_engine_torch import *
    from transformer_engine.pytorch.fp8 import _private
    alias = Dense
    NUMBER = 3
    if torch.version > 2:
        def choice(a, b): ...
    else:
        def choice(a): ...
    try:
        from flash_attn import flash
    except ImportError:
        flash = None
"""
FILES = {
    "pytorch/__init__.py": PYTORCH,
    "pytorch/module/__init__.py": "from .linear import Linear",
    "pytorch/module/linear.py": """
        import torch
        from .base import Base
        class Linear(Base):
            STYLE = "x"
            def __init__(self, in_features, *, bias=True): ...
            @classmethod
            def make(cls, size): ...
            @staticmethod
            def helper(size): ...
            @property
            def size(self): ...
            def reset(self):
                Linear.counter = 0
        """,
    "pytorch/module/base.py": """
        import torch
        class Base(torch.nn.Module):
            def forward(self, inp): ...
        """,
    "pytorch/fp8.py": """
        __all__ = ["autocast"]
        from contextlib import contextmanager
        @contextmanager
        def autocast(enabled=True): ...
        @magic
        def wrapped(a): ...
        def _private(): ...
        """,
    "pytorch/ops.py": "def fuse(): ...",
    "common/recipe.py": """
        from enum import Enum
        from typing import NamedTuple
        from pydantic.dataclasses import dataclass
        from dataclasses import field
        class Format(Enum):
            E4M3 = 1
        class Pair(NamedTuple):
            first: int
            second: int = 0
        @dataclass()
        class Recipe:
            margin: int = 0
        @dataclass(repr=False)
        class Scaling(Recipe):
            interval: int
            hidden: int = field(default=1, init=False)
            late: int = field(default_factory=int)
        """,
    "pytorch/functions.py": """
        import torch
        class Split(torch.autograd.Function):
            @staticmethod
            def forward(ctx, tensor, dim, squeeze=False): ...
        """,
}


@pytest.fixture(scope="module")
def surface() -> Surface:
    return te(FILES)


@pytest.mark.parametrize(
    ("path", "signature"),
    [
        ("transformer_engine:pytorch.Dense", "(self,in_features,*,bias=True)"),  # re-exported under another name
        ("transformer_engine.pytorch:alias", "(self,in_features,*,bias=True)"),  # bound to another name
        ("transformer_engine.pytorch:Dense.make", "(cls,size)"),
        ("transformer_engine.pytorch:Dense.helper", "(size)"),
        ("transformer_engine.pytorch:Dense.forward", "(self,inp)"),  # inherited from another module
        ("transformer_engine.pytorch:autocast", "(enabled=True)"),  # by `import *`
        ("transformer_engine.pytorch:_private", "()"),
        ("transformer_engine.common.recipe:Pair", "(self,first,second=0)"),
        ("transformer_engine.common.recipe:Scaling", "(self,margin=0,interval,late=...,**extra)"),
        ("transformer_engine.pytorch.functions:Split.apply", "(ctx,tensor,dim,squeeze=False,/)"),
    ],
)
def test_path_resolves_to_the_definition(surface: Surface, path: str, signature: str) -> None:
    found = surface.lookup(path)
    assert isinstance(found, ResolvedPath)
    assert [signature] == [parsed.text for parsed, _ in found.callables]


@pytest.mark.parametrize(
    "path",
    [
        "transformer_engine.pytorch:NUMBER",
        "transformer_engine.pytorch:flash",
        "transformer_engine.pytorch:Dense.STYLE",
        "transformer_engine.pytorch:Dense.counter",  # set on the class by a method
        "transformer_engine.common.recipe:Format.E4M3",
        "transformer_engine.pytorch.fp8:wrapped",  # behind an unknown decorator
        "transformer_engine.pytorch:",
        "transformer_engine.pytorch:ops",  # a submodule that an import statement names
    ],
)
def test_path_exists_without_a_known_signature(surface: Surface, path: str) -> None:
    found = surface.lookup(path)
    assert isinstance(found, ResolvedPath)
    assert ResolvedPath(found.name) == found


@pytest.mark.parametrize(
    ("path", "absent"),
    [
        ("transformer_engine.pytorch.nothing:", Absent("module", "", "transformer_engine.pytorch.nothing")),
        ("transformer_engine.pytorch.fp8:gone", Absent("name", "transformer_engine.pytorch.fp8", "gone")),
        ("transformer_engine.common.recipe:Format.E5", Absent("member", "Format", "E5")),
        ("transformer_engine.common.recipe:Recipe.delayed", Absent("member", "Recipe", "delayed")),
    ],
)
def test_missing_path_reports_its_owner(surface: Surface, path: str, absent: Absent | None) -> None:
    assert absent == surface.lookup(path)


@pytest.mark.parametrize(
    "path",
    [
        "transformer_engine.pytorch:unknown",  # the compiled module may define it
        "transformer_engine.pytorch:Dense.backward_dw",  # torch.nn.Module may define it
        "transformer_engine:pytorch.ops.fuse",  # nothing imports the submodule that defines it
        "transformer_engine_torch:thing",
    ],
)
def test_undecidable_path_is_none(surface: Surface, path: str) -> None:
    assert surface.lookup(path) is None
    assert surface.offers(path) is None


def test_name_defined_in_two_branches_has_both(surface: Surface) -> None:
    found = surface.lookup("transformer_engine.pytorch:choice")
    assert isinstance(found, ResolvedPath)
    assert [s.text for s, _ in found.callables] == ["(a,b)", "(a)"]
    assert surface.takes("transformer_engine.pytorch:choice", "a") is True
    assert surface.takes("transformer_engine.pytorch:choice", "b") is None
