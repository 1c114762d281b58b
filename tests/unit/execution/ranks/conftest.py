"""A supervisor for each Python process under test, and a mark by which every process it leads to is found again."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from matrix.execution.ranks.job import RankJob
from matrix.execution.ranks.supervisor import Supervisor
from tests.unit.execution.ranks.marks import MARK


@pytest.fixture(scope="session")
def mark() -> Iterator[str]:
    """Return a value that stands in the environment of the fork-server and of all that comes of it."""
    value = uuid.uuid4().hex
    os.environ[MARK] = value
    yield value
    del os.environ[MARK]


@pytest.fixture(scope="session")
def supervisor(mark: str) -> Iterator[Supervisor]:
    """One for all tests, so that each also shows that the one before it left the fork-server sound."""
    with Supervisor(preload=("json",)) as started:
        yield started


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., RankJob]:
    """Return a maker of jobs: the name of a body in bodies.py, and what is not as usual."""

    def make(body: str, *, fresh: bool = False, **changes: Any) -> RankJob:
        usual: dict[str, Any] = {
            "kwargs": {},
            "world_size": 2,
            "path": (),
            "env": {},
            "deadline_s": 30.0,
            "log_dir": tmp_path / "logs",
        }
        target = body if ":" in body else f"tests.unit.execution.ranks.bodies:{body}"
        return RankJob(target=target, fresh=fresh, **{**usual, **changes})

    return make


@pytest.fixture(params=[False, True], ids=["pooled", "fresh"])
def fresh(request: pytest.FixtureRequest) -> bool:
    """Both ways to start a rank."""
    return bool(request.param)


@pytest.fixture
def soon(fresh: bool) -> float:
    """Return a deadline (s) that a rank that hangs is given: time to come to hang, on a busy machine too."""
    return 4.0 if fresh else 1.0
