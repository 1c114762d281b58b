"""A supervisor per test process, and an environment mark that identifies every process it starts."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from matrix.prove.execution.ranks.rank_spec import RankJob
from matrix.prove.execution.ranks.supervisor import Supervisor
from tests.unit.prove.execution.ranks.marks import MARK


@pytest.fixture(scope="session")
def mark() -> Iterator[str]:
    """Set and return a value in the environment of the forkserver and its descendants."""
    value = uuid.uuid4().hex
    os.environ[MARK] = value
    yield value
    del os.environ[MARK]


@pytest.fixture(scope="session")
def supervisor(mark: str) -> Iterator[Supervisor]:
    """Return one supervisor for all tests, so that each also checks the forkserver after the previous one."""
    with Supervisor(preload=("json",)) as started:
        yield started


@pytest.fixture
def alone(supervisor: Supervisor) -> None:
    """Stop the forkserver of the tests, since a process has only one; the next job starts it again."""
    supervisor.__exit__(None, None, None)


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., RankJob]:
    """Return a function that makes jobs from the name of a body in bodies.py and changed fields."""

    def make(body: str, *, fresh: bool = False, **changes: Any) -> RankJob:
        usual: dict[str, Any] = {
            "kwargs": {},
            "world_size": 2,
            "path": (),
            "env": {},
            "deadline_s": 30.0,
            "log_dir": tmp_path / "logs",
        }
        target = body if ":" in body else f"tests.unit.prove.execution.ranks.bodies:{body}"
        return RankJob(target=target, fresh=fresh, **{**usual, **changes})

    return make


@pytest.fixture(params=[False, True], ids=["pooled", "fresh"])
def fresh(request: pytest.FixtureRequest) -> bool:
    """Return whether ranks are forked (False) or start a new interpreter (True)."""
    return bool(request.param)


@pytest.fixture
def soon(request: pytest.FixtureRequest) -> float:
    """Return a deadline (s) for ranks that hang, long enough to reach the hang on a busy machine.

    On two cores with a load of 22, whole tests of two fresh ranks took 0.7 to 1.0 s.
    """
    return 2.5 if "fresh" in request.fixturenames and request.getfixturevalue("fresh") else 1.0
