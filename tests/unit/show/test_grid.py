"""The grid of a failure: columns are releases of megatron-core, rows all else that a cell names."""

from __future__ import annotations

from dataclasses import replace

from matrix.ground.catalog.stack import WRITER_MCORE
from matrix.show.grid import grids
from tests.unit.show.samples import cell, record


def test_writers_are_rows_and_readers_columns() -> None:
    cells = [
        cell(mcore=reader).with_({WRITER_MCORE: writer})
        for writer in ("0.9.0", "0.8.0")
        for reader in ("0.9.0", "0.8.0")
    ]
    records = [record(where=one) for one in cells]
    (grid,) = grids(records, {one.key: "" for one in records}, {})
    assert grid.columns == ("0.8.0", "0.9.0")
    assert [axes for _, axes, _ in grid.rows] == ["writer-mcore 0.8.0", "writer-mcore 0.9.0"]


def test_packages_are_rows() -> None:
    records = [
        record(where=replace(cell().with_({"transformers": version}), packages=("transformers",)))
        for version in ("5.0", "4.57")
    ]
    (grid,) = grids(records, {one.key: "" for one in records}, {})
    assert [axes for _, axes, _ in grid.rows] == ["transformers 4.57", "transformers 5.0"]
