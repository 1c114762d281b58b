"""`megatrix check` finds each failure of the catalog by versions in which it is expected."""

from __future__ import annotations

from typing import Final

import pytest

from matrix.ask.check.checking import Question, check
from matrix.ask.check.rulings import Standing
from matrix.ask.check.user_stack import build, parse_text
from matrix.ground.cases.cells import cells_of, picked_cells
from matrix.ground.catalog import loading
from matrix.ground.catalog.failure import Expectation, Failure
from matrix.ground.catalog.stack import MCORE, TE, TORCH, components
from tests.unit.catalogs import few

BREAKING: Final = {Standing.WILL_BREAK, Standing.WITH_OPTIONS, Standing.SILENT, Standing.WITH_VERSIONS}
KNOWN: Final = loading.load()
# Those that versions alone reach: a requirements file names no image.
NAMEABLE: Final = [one for one in KNOWN.failures if any(rule.bounds and not rule.base for rule in one.affected)]


def breaking_versions(failure: Failure) -> dict[str, str]:
    """Return the versions of a cell in which the failure is expected; without one, the newest that a rule bounds."""
    cells = (*cells_of(KNOWN, failure), *picked_cells(KNOWN, failure))
    every = (*cells, *(KNOWN.cell_named(report.cell) for report in failure.stack))
    stacks = [cell.stack for cell in every if failure.expectation(cell.stack) is Expectation.BROKEN]
    if stacks:
        return dict(stacks[0].versions)
    rule = next(rule for rule in failure.affected if not rule.base and not rule.cases)
    releases = {MCORE: KNOWN.megatron_core, TE: KNOWN.transformer_engine, TORCH: KNOWN.torch}
    return {
        name: [release.version for release in known_releases if release.version in rule.bounds[name]][-1]
        for name, known_releases in releases.items()
        if name in rule.bounds
    }


@pytest.mark.parametrize("failure", NAMEABLE, ids=lambda failure: failure.id)
def test_versions_of_a_broken_cell_name_the_failure(failure: Failure) -> None:
    """What a requirements file can't name, such as a driver or a writer, is among what is not named."""
    distributions = {name: component.distribution for name, component in components().items()}
    versions = breaking_versions(failure).items()
    pins = " ".join(f"{name}={version}" for name, version in versions if distributions.get(name, True))
    alone = few(failure.id)
    (found,) = check(alone, build(alone, parse_text(alone, pins) if pins else ()), Question(), {}).failures
    assert found.standing in BREAKING
