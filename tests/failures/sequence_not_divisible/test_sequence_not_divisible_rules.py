"""The multiple of which the lengths of sequences must be, and the preflight that states it."""

from __future__ import annotations

from pathlib import Path

import pytest

from matrix.ground.catalog.failure import Expectation
from matrix.ground.catalog.folders import load_module
from matrix.ground.catalog.loading import load
from matrix.ground.catalog.stack import MCORE
from matrix.kit.preflight import Machine, Status, TrainingJob

CATALOG = load()
PREFLIGHT = load_module(Path(__file__).parent, "preflight")


@pytest.mark.parametrize(
    ("tensor", "context", "expected"),
    [(1, 1, 1), (4, 1, 4), (1, 2, 4), (2, 2, 4), (3, 2, 12), (4, 2, 8), (8, 4, 32)],
)
def test_multiple_is_the_least_common_one(tensor: int, context: int, expected: int) -> None:
    assert PREFLIGHT.multiple(tensor, context) == expected


@pytest.mark.parametrize(
    ("command", "status", "fails"),
    [
        ({"sequence-parallel": "", "seq-length": "4100"}, Status.NO, True),
        ({"sequence-parallel": "", "seq-length": "4096"}, Status.YES, False),
        ({"seq-length": "4100"}, Status.YES, False),
        ({"sequence-parallel": ""}, Status.UNKNOWN, False),
    ],
)
def test_preflight_judges_the_length_given(command: dict[str, str], status: Status, fails: bool) -> None:
    sizes = {"tensor-model-parallel-size": "4", "context-parallel-size": "2"}
    report = PREFLIGHT.examine(TrainingJob(command={**sizes, **command}), Machine(), None)
    assert (report.answers[0].status, report.fails) == (status, fails)
    assert report.data["multiple"] == (8 if "sequence-parallel" in command else 4)


@pytest.mark.parametrize(
    ("mcore", "case", "expectation"),
    [
        ("0.11.0", "tp2-odd", Expectation.BROKEN),
        ("0.19.2", "tp4-cp2-too-short", Expectation.BROKEN),
        ("0.19.2", "tp4-cp2", Expectation.WORKS),
    ],
)
def test_the_rules_match_the_measurements(mcore: str, case: str, expectation: Expectation) -> None:
    stack = CATALOG.cell("torch-2.15.0", {MCORE: mcore}).stack
    assert expectation is CATALOG.failure("sequence-not-divisible").expectation(stack, case)
