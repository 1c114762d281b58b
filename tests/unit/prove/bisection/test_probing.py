"""Which points are read without a cell, and the command that reads them again."""

from __future__ import annotations

from matrix.ground.catalog.failure import ContractCall, Level, Signature
from matrix.ground.catalog.stack import MCORE, TE
from matrix.prove.bisection import probing
from tests.unit import catalogs
from tests.unit.catalogs import case, failure
from tests.unit.prove.bisection import repositories

OFFLOAD_ENTRY = failure(
    "offload-breaks",
    axes=(MCORE, TE),
    signature=(Signature("count", exception="TypeError"),),  # type: ignore[arg-type]
    case=(case("contract", (Level.CONTRACT,), 1, 0),),
    contract=ContractCall("get_cpu_offload_context$"),  # type: ignore[arg-type]
)


def test_a_recorded_build_needs_no_clone() -> None:
    """Level contract reads megatron-lm@REV from its recorded calls."""
    item = catalogs.planned(repositories.KNOWN, source="megatron-lm@094d66b488")

    assert probing.contract_line(item) == "megatrix contract --mcore 0.8.0 --te none"
    assert probing.reads_only(OFFLOAD_ENTRY, Level.CONTRACT)
    assert not probing.reads_only(OFFLOAD_ENTRY, Level.CPU)
    assert not probing.reads_only(repositories.ENTRY, Level.CONTRACT)
