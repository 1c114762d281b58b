"""Which imports of a body may be held by another process: those that come first, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from matrix.ground.catalog.failure import Limits
from matrix.ground.catalog.schema import Size
from matrix.prove.execution.ranks.overlay_server import CPU_DEVICE, first_imports
from matrix.prove.execution.ranks.rank_spec import RankJob

HIDDEN = ("transformer_engine",)
START = (CPU_DEVICE, "megatron.core")


def job(folder: Path, text: str, **changes: Any) -> RankJob:
    (folder / "reproduction.py").write_text(text, encoding="utf-8")
    usual = RankJob(f"{folder / 'reproduction.py'}:body", {}, 1, (), {}, 1.0, folder, hidden=HIDDEN)
    return replace(usual, **changes)


@pytest.mark.parametrize(
    ("body", "steps"),
    [
        ("torch = megatron.start(rank)", START),
        ("megatron.start(rank, tensor_parallel=2)", START),
        ("'A docstring.'; sizes = {'a': 2}; torch = megatron.start(rank, **sizes)", START),
        ("import torch; from megatron.core import enums; megatron.start(rank)", ("megatron.core",)),
        ("import torch; import transformer_engine.pytorch as te", ("transformer_engine.pytorch",)),
        ("import json; import megatron.core.models as m; megatron.start(rank)", ("json", "megatron.core")),
        ("import megatron.training.arguments", ("megatron.training.arguments",)),
        ("megatron.start(rank); from megatron.core.models import gpt", START),
        ("import torch", ()),
        ("os.environ['A'] = '1'; import megatron.core", ()),
        ("torch.compile = None; import megatron.core", ()),
        ("sizes = dict(a=2); import megatron.core", ()),
        ("prepare(rank); megatron.start(rank)", ()),
        ("return megatron.stop()", ()),
    ],
)
def test_steps_end_at_anything_else(tmp_path: Path, body: str, steps: tuple[str, ...]) -> None:
    assert first_imports(job(tmp_path, f"def body(rank):\n    {body}\n")) == steps


@pytest.mark.parametrize(
    ("first", "held"),
    [
        ('"""A docstring."""\nimport re\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch', True),
        ("A, B = 1, 2\nC: int = 3", True),
        ("import os\nos.environ['A'] = '1'", False),
        ("import os\nos.environ |= {}", False),
        ("import sys\nsys.modules.pop('torch', None)", False),
        ("import torch\ntorch.compile = None", False),
        ("if True:\n    import torch", False),
    ],
)
def test_module_that_does_more_is_not_held(tmp_path: Path, first: str, held: bool) -> None:
    assert bool(first_imports(job(tmp_path, f"{first}\ndef body(rank):\n    import megatron.core\n"))) == held


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        ({"device": "cuda", "hidden": ()}, ("megatron.core",)),
        ({"hidden": ()}, ()),  # the stand-in of TE's extension comes first
        ({"stand_ins": {"packages": ["apex"]}}, ()),
        ({"device": "cuda", "stand_ins": {"packages": ["apex"]}}, ()),
        ({"fresh": True}, ()),
        ({"env": {"A": "1"}}, ()),
        ({"launcher": "mpirun"}, ()),
        ({"limits": Limits(address_space=Size(1))}, ()),
        ({"target": "matrix.kit.parity.campaign:deviation"}, ()),
    ],
)
def test_a_job_that_differs_holds_nothing(tmp_path: Path, changes: dict[str, Any], steps: tuple[str, ...]) -> None:
    assert first_imports(job(tmp_path, "def body(rank):\n    megatron.start(rank)\n", **changes)) == steps


def test_function_of_the_kit_is_read_there(tmp_path: Path) -> None:
    text = "from matrix.kit.gpt import save_and_load as other, read\n"
    assert first_imports(job(tmp_path, text, target=f"{tmp_path / 'reproduction.py'}:read"))[0] == "megatron.core"
    assert first_imports(job(tmp_path, text, target=f"{tmp_path / 'reproduction.py'}:absent")) == ()
