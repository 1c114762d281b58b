"""Cases without a process: unavailable ones with all that they lack, and cached ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.machine import PythonEnvironment
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.planned import Planned
from matrix.ground.verdicts.record import Record
from matrix.prove.execution import cache_key
from matrix.prove.execution.cache_key import ImmediateResults
from tests.unit.catalogs import catalog, failure, planned
from tests.unit.engines import HOST, FakeEngine
from tests.unit.show.samples import record

KNOWN = catalog(failure())
CASE = planned(KNOWN)
CONTENTS = PythonEnvironment("3.10.13", {"torch": "2.4.0"}, path=Path("python"))
CACHED = replace(record(), planned=CASE, run="an earlier one")


def made(
    monkeypatch: pytest.MonkeyPatch, content: PythonEnvironment | None, cached: Record | MatrixError | None
) -> ImmediateResults:
    """Return what looks for these contents of a base, and finds this record in the history."""

    def find(key: str) -> Record | None:
        if isinstance(cached, MatrixError):
            raise cached
        assert key == "key"
        return cached

    engine: Any = FakeEngine(KNOWN)
    engine.installed = lambda base: content
    monkeypatch.setattr(cache_key, "overlay_specs", lambda *_: ())
    monkeypatch.setattr(cache_key, "case_key", lambda *_: "key")
    return ImmediateResults(KNOWN, engine, HOST, SimpleNamespace(cached=find), "now")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("item", "content", "record", "cached"),
    [
        (CASE, CONTENTS, CACHED, True),
        (CASE, CONTENTS, None, False),
        (CASE, None, CACHED, False),  # its environment does not exist yet
        (CASE, CONTENTS, replace(CACHED, planned=replace(CASE, case="another")), False),
        (CASE, CONTENTS, MatrixError("no history"), False),
        (replace(CASE, level=Level.GPU), CONTENTS, CACHED, False),
    ],
)
def test_cached_record(
    monkeypatch: pytest.MonkeyPatch,
    item: Planned,
    content: PythonEnvironment | None,
    record: Record | MatrixError | None,
    cached: bool,
) -> None:
    result = made(monkeypatch, content, record).cached(item)
    assert (result is not None) is cached
    assert result is None or (result.run, result.key) == ("now", CASE.key)


def test_case_that_lacks_nothing_is_not_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert made(monkeypatch, CONTENTS, None).unavailable(CASE) is None


def test_unavailable_case_has_all_that_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    item = replace(CASE, level=Level.GPU, gpus=2)
    result = made(monkeypatch, CONTENTS, None).unavailable(item)
    assert result is not None
    assert (result.verdict.value, result.run) == ("unavailable", "now")
    assert result.outcome.reason in [lack.text for lack in result.outcome.lacks]
