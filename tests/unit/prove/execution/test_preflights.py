"""A case at level contract whose failure has a preflight."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from matrix.ground.catalog.failure import ContractCall, Failure
from matrix.ground.catalog.reach import JobOption, PreflightOptions
from matrix.ground.catalog.schema import Pattern
from matrix.ground.errors import MatrixError
from matrix.ground.verdicts.outcome import OutcomeKind, Raised
from matrix.kit.preflight import preflight_of
from matrix.prove.execution.preflights import outcome_of, read_case
from matrix.read.api import sides
from tests.unit.catalogs import case, cell, failure

CELL = cell("debian-13", torch="2.6.0", mcore="0.9.0", te="1.9.0")
CODE = """
from matrix.kit.preflight import Answer, Error, Report, Status, unjudged

def examine(job, machine, contracts):
    mode = job.arguments.get("mode", "")
    if mode == "unknown":
        return unjudged(f"nothing is known of {job.te}")
    errors = {"raises": Error("TypeError", "no"), "crashes": Error("Crash", "too small", "SIGSEGV")}
    world = Answer("the world", Status.YES, f"{job.world.mpi} of {job.world.size}, {job.torch_mpi}")
    return Report((world, Answer("it starts", Status.NO, "a reason", errors.get(mode))))
"""


@pytest.fixture
def entry(tmp_path: Path) -> Failure:
    (tmp_path / "preflight.py").write_text(CODE)
    return failure(folder=tmp_path, preflight=PreflightOptions(option=(JobOption("mode", "MODE"),)))


@pytest.mark.parametrize(
    ("mode", "kind", "reason", "chain"),
    [
        ("", OutcomeKind.PASSED, "1 of 2, True", ()),
        ("raises", OutcomeKind.RAISED, "TypeError: no", (Raised("TypeError", "no"),)),
        ("crashes", OutcomeKind.RAISED, "too small", (Raised("Crash", "too small"),)),
        ("unknown", OutcomeKind.UNAVAILABLE, "nothing is known of 1.9.0", ()),
    ],
)
def test_answer_is_converted_to_an_outcome(
    entry: Failure, mode: str, kind: OutcomeKind, reason: str, chain: tuple[Raised, ...]
) -> None:
    outcome = read_case(entry, replace(case(), arguments={"mode": mode}), CELL)
    assert (outcome.kind, outcome.reason, outcome.chain) == (kind, reason, chain)


def test_unknown_argument_raises(entry: Failure) -> None:
    with pytest.raises(MatrixError, match="mode"):
        read_case(entry, replace(case(), arguments={"mod": "raises"}), CELL)


def test_module_without_a_preflight_raises(tmp_path: Path) -> None:
    (tmp_path / "preflight.py").write_text("")
    with pytest.raises(MatrixError, match="def examine"):
        preflight_of(tmp_path)


@pytest.mark.parametrize(
    ("caller", "exceptions"),
    [
        (None, ["AttributeError", "ImportError"]),
        ("record_graph_capture$", ["ImportError"]),
        ("_get_fp8_autocast_for_quant_recipe$", ["AttributeError"]),
        ("nobody", []),
    ],
)
def test_caller_limits_the_call(caller: str | None, exceptions: list[str]) -> None:
    """Two functions of megatron-core 0.16.1 use a class that Transformer Engine 2.7 lacks, in different ways."""
    call = ContractCall(Pattern(r"\.NVFP4BlockScaling$"), caller=Pattern(caller) if caller else None)
    outcome = outcome_of(call, sides.findings("0.16.1", "2.7.0"))

    assert sorted({one.type for one in outcome.chain}) == exceptions
    assert outcome.kind is (OutcomeKind.RAISED if exceptions else OutcomeKind.PASSED)


def test_break_that_raises_before_is_in_the_chain() -> None:
    """The call of the entry is broken, too, but a line above it ends the program first."""
    outcome = outcome_of(ContractCall(Pattern(r"\.initialize_ub$")), sides.findings("0.16.1", "2.7.0"))
    assert [raised.type for raised in outcome.chain] == ["TypeError", "AttributeError"]
