"""The table of loss functions."""

from __future__ import annotations

from matrix.ground.catalog.codec import decode
from matrix.ground.catalog.loading import load
from matrix.ground.catalog.schema import read_toml
from matrix.ground.catalog.stack import MCORE
from matrix.kit.parity import global_batch


def test_every_release_has_one_loss_function() -> None:
    table = decode(global_batch.LossTable, read_toml(global_batch.LOSSES))
    versions = [release.version for release in load().releases(MCORE)]
    assert len(versions) > 20
    for version in versions:
        assert len([row for row in table.loss if version in row.mcore]) == 1, version
