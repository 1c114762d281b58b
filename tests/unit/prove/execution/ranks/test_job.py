"""Invalid jobs and timeouts raise when they are made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from matrix.ground.errors import MatrixError
from matrix.prove.execution.ranks.rank_spec import RankJob


@pytest.mark.parametrize(
    ("changes", "got"),
    [
        ({"world_size": 0}, "world_size 0"),
        ({"deadline_s": 0.0}, "0.0 s"),
        ({"deadline_s": float("nan")}, "nan s"),
        ({"device": "tpu"}, "tpu"),
        ({"kwargs": {"folder": Path("/")}}, "not JSON serializable"),
    ],
)
def test_invalid_job_raises(job: Callable[..., RankJob], changes: dict[str, Any], got: str) -> None:
    with pytest.raises(MatrixError, match=got):
        job("nothing", **changes)


@pytest.mark.parametrize("target", ["module", "module:", ":function", "a b:c", "package.:f", "m:f.g", ""])
def test_invalid_target_raises(job: Callable[..., RankJob], target: str) -> None:
    with pytest.raises(MatrixError, match=r"package\.module:function"):
        RankJob(target, {}, 1, (), {}, 1.0, Path())
