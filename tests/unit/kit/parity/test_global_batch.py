"""The table of loss functions."""

from __future__ import annotations

from matrix.ground.catalog.codec import decode
from matrix.ground.catalog.loading import load
from matrix.ground.catalog.schema import read_toml
from matrix.ground.catalog.stack import MCORE
from matrix.kit.parity import layout_step


def test_every_release_has_one_loss_function() -> None:
    table = decode(layout_step.LossTable, read_toml(layout_step.LOSSES))
    versions = [release.version for release in load().releases(MCORE)]
    assert len(versions) > 20
    for version in versions:
        assert len([row for row in table.loss if version in row.mcore]) == 1, version
