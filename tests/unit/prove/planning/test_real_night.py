"""The night of the real catalog."""

from __future__ import annotations

from functools import partial

import pytest

from matrix.ground.catalog.codec import decode, encode
from matrix.ground.catalog.failure import Level, ReportedStack
from matrix.ground.verdicts.planned import Planned, Reason, ReasonKind
from matrix.prove.authoring.entry import find_function
from matrix.prove.provision.project import ROOT
from tests.unit.catalogs import real, real_night

planned = partial(real_night, (Level.CONTRACT, Level.CPU))


@pytest.mark.parametrize("reported", real().reports, ids=lambda stack: stack.name)
def test_every_report_is_in_the_real_night(reported: ReportedStack) -> None:
    reason = Reason(ReasonKind.STACK, f"{reported.name}: {reported.text}")
    found = {item.cell.base for item in planned() if reason in item.why}
    assert {reported.cell.base} == found


def test_every_case_of_real_night_has_reason() -> None:
    assert [item.key for item in planned() if not item.why] == []


def test_every_function_of_the_real_night_exists() -> None:
    """Cases without a reproduction are left out: they name no function."""
    missing = {
        f"{item.failure} {item.case}"
        for item in planned()
        if item.reproducible and item.level is not Level.CONTRACT and not has_function(item)
    }
    assert missing == set()


def has_function(item: Planned) -> bool:
    entry = real().failure(item.failure)
    module, name = entry.case_named(item.case).function
    path = ROOT.joinpath(*module.split(".")).with_suffix(".py") if "." in module else entry.folder / f"{module}.py"
    return path.is_file() and find_function(path, name) is not None


def test_json_keeps_the_planned() -> None:
    assert [*planned()] == [decode(Planned, encode(item)) for item in planned()]
