"""The rank spec has the environment of a launcher, and a Rank that its process reads back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from matrix.ground.catalog.codec import decode
from matrix.kit.rank import Rank
from matrix.prove.execution.ranks.rank_spec import GroupRequest, RankJob, environment

JOB = RankJob("a:b", {"size": 2}, 2, ("/overlay",), {"A": "b"}, 1.0, Path("logs"), clones={"megatron-lm": "/clone"})


def test_each_rank_has_its_own_spec() -> None:
    request = GroupRequest(JOB, Path("/folder"), ["/path"], ["json"], "/group")
    specs = [json.loads(spec) for spec in request.specs()]
    assert [decode(Rank, spec["rank"]).rank for spec in specs] == [0, 1]
    rank = decode(Rank, specs[1]["rank"])
    assert (rank.world_size, rank.workdir, rank.overlays) == (2, Path("/folder/work"), ("/overlay",))
    assert (rank.init_method, rank.clones) == ("file:///folder/store", {"megatron-lm": "/clone"})
    assert (specs[0]["path"], specs[0]["preloaded"]) == (["/overlay", "/path"], ["json"])
    assert len({spec["env"]["MASTER_PORT"] for spec in specs}) == 1


@pytest.mark.parametrize(
    ("changes", "variable", "value"),
    [
        ({}, "RANK", "1"),
        ({}, "WORLD_SIZE", "2"),
        ({}, "A", "b"),
        ({}, "ROLE_RANK", "1"),
        ({"launcher": "mpirun"}, "ROLE_RANK", None),
        ({}, "CUDA_VISIBLE_DEVICES", ""),
        ({"device": "cuda"}, "TORCHELASTIC_RUN_ID", "none"),
        ({}, "MASTER_PORT", "7"),
    ],
)
def test_environment_of_a_rank(
    changes: dict[str, Any], variable: str, value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    job = RankJob("a:b", {}, 2, (), {"A": "b"}, 1.0, Path("logs"), **changes)
    assert environment(job, 1, 7).get(variable) == value


@pytest.mark.parametrize(("gpus", "numbers"), [(0, "0123"), (4, "0123"), (2, "0101"), (1, "0000")])
def test_local_rank_is_the_number_of_a_gpu(gpus: int, numbers: str) -> None:
    job = RankJob("a:b", {}, 4, (), {}, 1.0, Path("logs"), gpus=gpus)
    assert "".join(environment(job, rank, 7)["LOCAL_RANK"] for rank in range(4)) == numbers
