"""What cases of real entries require of the releases of a cell: without it, a line of the catalog is red."""

from __future__ import annotations

from functools import cache

import pytest

from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.stack import MCORE, TE, WRITER_MCORE, WRITER_TE
from matrix.ground.catalog.versions import minor
from matrix.prove.planning.night import ANY_LINE, of_base
from tests.unit.catalogs import few

IDS = (
    *("aux-loss-logged-partial", "dataset-helpers-make", "gdn-cp-comm-type", "global-aux-loss-scale"),
    *("import-without-gpu", "mtp-loss-context-parallel", "permute-no-tokens", "te-triton-permutation"),
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
        # the kernel and its call of get_int_dtype
        ("te-triton-permutation", ("torch-2.8.0", None, "2.4"), ("torch-2.8.0", None, "2.6")),
        ("permute-no-tokens", ("torch-2.7.1", "0.15", "2.2"), ("torch-2.7.1", "0.15", "2.3")),
    ],
)
def test_cells_without_requirements_are_not_planned(
    failure: str, without: tuple[str, str | None, str | None], has: tuple[str, str | None, str | None]
) -> None:
    assert (failure, *without[1:]) not in cells(without[0])
    assert (failure, *has[1:]) in cells(has[0])


@pytest.mark.parametrize(
    ("failure", "writer", "base", "without", "has"),
    [
        # before 0.7 megatron-core writes zarr by default
        ("weights-only-common", WRITER_MCORE, "torch-2.8.0", "0.6", "0.7"),
        # 1.x imports torch.onnx._type_utils
        ("te-extra-state-pickle", WRITER_TE, "torch-2.9.1", "1.9", "2.1"),
        ("te-extra-state-pickle", WRITER_TE, "torch-2.8.0", "1.7", "1.9"),
    ],
)
def test_writers_of_checkpoints_can_write_them(failure: str, writer: str, base: str, without: str, has: str) -> None:
    planned = of_base(few(failure), base, (Level.CPU,), te_line=ANY_LINE)
    writers = {minor(str(item.cell.stack[writer])) for item in planned}
    assert has in writers
    assert without not in writers
