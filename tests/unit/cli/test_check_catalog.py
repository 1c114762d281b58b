"""`megatrix check` with a requirements file, for each failure of the catalog."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from matrix.catalog import loading
from matrix.catalog.failure import Expectation, Failure
from matrix.catalog.stack import MCORE, TE, TORCH, components
from matrix.check.rulings import Standing
from matrix.cli.main import main
from matrix.planning.cases import cells_of, picked_cells
from tests.schemas import items_of

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
def test_requirements_file_of_a_broken_cell_names_failure(
    failure: Failure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the file can't name, such as a driver or a checkpoint's writer, is among the versions not named."""
    monkeypatch.setenv("MEGATRIX_OUT", str(tmp_path / "out"))
    distributions = {name: component.distribution for name, component in components().items()}
    pins = [
        f"{name}=={version}" for name, version in breaking_versions(failure).items() if distributions.get(name, True)
    ]
    file = tmp_path / "requirements.txt"
    file.write_text("\n".join(pins) + "\n")

    main(["check", str(file), "--json"])

    (answer,) = items_of(capsys.readouterr().out, "check")
    found = {one["failure"]: Standing(one["standing"]) for one in answer["failures"]}
    assert found[failure.id] in BREAKING
