"""What cases of real entries require of the releases of a cell: without it, a line of the catalog is red."""

from __future__ import annotations

from functools import cache

import pytest

from matrix.catalog.failure import Level
from matrix.catalog.stack import MCORE, TE
from matrix.catalog.versions import minor
from matrix.planning.night import ANY_LINE, of_base
from tests.unit.catalogs import few

IDS = (
    *("aux-loss-logged-partial", "dataset-helpers-make", "gdn-cp-comm-type", "global-aux-loss-scale"),
    *("import-without-gpu", "mtp-loss-context-parallel", "permute-no-tokens"),
)


@cache
def cells(base: str) -> frozenset[tuple[str | None, ...]]:
    """Return the failure, and the minors of megatron-core and Transformer Engine, of each case on a base."""
    planned = of_base(few(*IDS), base, (Level.CPU,), te_line=ANY_LINE)
    return frozenset(
        (item.failure, *((version := item.cell.stack.version(name)) and minor(version) for name in (MCORE, TE)))
        for item in planned
    )


@pytest.mark.parametrize(
    ("failure", "without", "has"),
    [
        # gloo has ReduceOp.AVG since torch 2.8: the wheel's libtorch_cpu.so of 2.7.1 refuses it
        *((id, ("torch-2.7.1", "0.15", None), ("torch-2.8.0", "0.15", None)) for id in (IDS[0], IDS[3], IDS[5])),
        ("dataset-helpers-make", ("torch-2.7.1", "0.15", None), ("torch-2.7.1", "0.14", None)),
        ("gdn-cp-comm-type", ("torch-2.7.1", "0.15", None), ("torch-2.7.1", "0.16", None)),
        ("permute-no-tokens", ("torch-2.7.1", "0.15", "1.9"), ("torch-2.7.1", "0.15", "2.1")),
    ],
)
def test_cells_without_what_a_case_runs_are_not_planned(
    failure: str, without: tuple[str, str | None, str | None], has: tuple[str, str | None, str | None]
) -> None:
    assert (failure, *without[1:]) not in cells(without[0])
    assert (failure, *has[1:]) in cells(has[0])
