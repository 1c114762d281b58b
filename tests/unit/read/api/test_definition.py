"""Definitions of a provider: signatures that decorators change, generated constructors, members of classes."""

from __future__ import annotations

import ast

from matrix.read.api.comparison import find
from matrix.read.api.definition import signature_text
from matrix.read.api.provider import TORCH
from tests.unit.read.api.sources import breaks, core, mcore, project, te, torch

CONFIG = """
from dataclasses import dataclass
from megatron.core.parallel import ParallelConfig
@dataclass
class TransformerConfig(ParallelConfig):
    num_layers: int = 0
"""
PARALLEL = """
from dataclasses import dataclass
@dataclass
class ParallelConfig:
    tensor_model_parallel_size: int = 1
    def __post_init__(self): ...
"""


def test_dataclass_takes_fields_of_distant_bases() -> None:
    """TransformerConfig extends a dataclass of another module."""
    surface = core({"config.py": CONFIG, "parallel.py": PARALLEL})
    fork = project(
        "from megatron.core.config import TransformerConfig as C\n"
        "C(num_layers=2, tensor_model_parallel_size=2)\nC(num_layers=2, gone=1)\n"
    )

    assert breaks(fork, surface) == [
        ("definite", "TransformerConfig.__init__() got an unexpected keyword argument 'gone'")
    ]


def test_dataclass_of_one_module_inherits_distant_fields() -> None:
    """MLATransformerConfig extends TransformerConfig, which extends a dataclass of another module."""
    mla = "@dataclass\nclass MLAConfig(TransformerConfig):\n    q_lora_rank: int = 0\n"
    surface = core({"config.py": f"{CONFIG}{mla}", "parallel.py": PARALLEL})
    fork = project(
        "from megatron.core.config import MLAConfig\n"
        "MLAConfig(num_layers=2, tensor_model_parallel_size=2, q_lora_rank=1)\nMLAConfig(gone=1)\n"
    )

    assert breaks(fork, surface) == [("definite", "MLAConfig.__init__() got an unexpected keyword argument 'gone'")]


def test_attribute_set_by_methods_is_no_missing_method() -> None:
    wrapper = "class Wrapper:\n    def __init__(self, model):\n        self.model = model\n"
    fork = project(
        "from megatron.core.wrapper import Wrapper\nclass Mine(Wrapper):\n"
        "    def run(self):\n        self.model(1)\n        self.other(1)\n"
    )

    assert breaks(fork, core({"wrapper.py": wrapper})) == [("definite", "'Mine' object has no attribute 'other'")]


def test_gone_member_of_an_enumeration_is_found() -> None:
    """verl#6936: ModelType.encoder_and_decoder went with core 0.18."""
    fork = project("from megatron.core.enums import ModelType as M\nM.a\nM.b\nM.__members__\n")

    assert breaks(fork, core({"enums.py": "import enum\nclass ModelType(enum.Enum):\n    a = 1\n"})) == [
        ("definite", "type object 'ModelType' has no attribute 'b'")
    ]


def test_metaclass_and_own_construction_are_unknown() -> None:
    """The metaclass may define WORLD; __new__ may return an object of another class."""
    text = "class _Meta(type):\n    WORLD = 1\nclass group(metaclass=_Meta): ...\n"
    found = breaks(
        project("from torch.distributed.checkpoint import group\ngroup.WORLD\ngroup.x\n", TORCH),
        torch({"checkpoint/__init__.py": text}),
    )
    assert found == []


def test_keyword_that_pydantic_drops_is_ignored() -> None:
    """DelayedScaling drops fp8_dpa before TE 1.6; no release takes `other`."""
    recipe = "from pydantic.dataclasses import dataclass\n@dataclass\nclass DelayedScaling:\n    margin: int = 0\n{}"
    old = te({"common/__init__.py": "", "common/recipe.py": recipe.format("")})
    new = te({"common/__init__.py": "", "common/recipe.py": recipe.format("    fp8_dpa: bool = False\n")})
    fork = mcore(
        "from transformer_engine.common.recipe import DelayedScaling\nDelayedScaling(margin=1, fp8_dpa=True, other=1)\n"
    )

    assert breaks(fork, old, new) == [("ignored", "DelayedScaling.__init__() drops the keyword argument 'fp8_dpa'")]
    assert breaks(fork, new, old) == []
    assert find(fork, old) == []


def test_logged_api_keeps_its_signature() -> None:
    """load() has two decorators, and one of them passes a second positional argument on by keyword."""
    decorators = "@_dcp_method_logger(log_exceptions=True)\n@_api_bc_check\n"
    load = f"{decorators}def load(state_dict, *, checkpoint_id=None): ...\n"
    fork = project(
        "from torch.distributed import checkpoint as c\nc.load({}, 'path')\nc.load({}, no_dist=True)\n", TORCH
    )

    assert breaks(fork, torch({"checkpoint/__init__.py": load})) == [
        ("definite", "load() got an unexpected keyword argument 'no_dist'")
    ]


def test_dataclass_inherits_fields_of_its_module_in_order() -> None:
    """A field that is defined again keeps its place; the positions of the others follow."""
    text = "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int\n    y: int = 0\n"
    surface = core({"a.py": f"{text}@dataclass\nclass B(A):\n    x: int = 1\n    z: int = 2\n"})

    assert surface.modules["megatron.core.a"]["B"]["members"]["__init__"] == "(self,x=1,y=0,z=2)"


def test_signature_text_has_kinds_and_short_defaults() -> None:
    source = "def f(a, /, b: int = 1, c='LayerNorm', d=Format.HYBRID, *args, e, f=(1, 2), g=-1, **kw): pass"
    [definition] = ast.parse(source).body
    assert isinstance(definition, ast.FunctionDef)
    assert (
        signature_text(definition.args)
        == "(a,/,b=1,c='LayerNorm',d=...,*args,e,f=...,g=-1,**kw)"
    )  # fmt: skip
