"""The night of the real catalog."""

from __future__ import annotations

from functools import cache

import pytest

from matrix.planning.covering import pairwise
from matrix.planning.night import night
from matrix.planning.planned import Planned
from matrix.provision.project import ROOT
from matrix.verdicts.reason import Reason, ReasonKind
from tests.unit.catalogs import (
    real,
)


@cache
def real_night() -> list[Planned]:
    return night(real(), pairwise)


@pytest.mark.parametrize("name", ["Megatron-LM#1041", "Megatron-LM#1003", "TransformerEngine#985", "Megatron-LM#1025"])
def test_the_four_reports_are_in_the_real_night_by_name(name: str) -> None:
    (reported,) = [one for one in real().stacks if one.name == name]
    reason = Reason(ReasonKind.STACK, f"{name}: {reported.text}")
    found = {item.cell.base for item in real_night() if reason in item.why}
    assert {reported.cell.base} == found


def test_every_case_of_the_real_night_says_why_and_names_a_test_or_says_that_there_is_none() -> None:
    assert [item.key for item in real_night() if not item.why] == []
    assert [
        item.test for item in real_night() if item.test and not (ROOT / item.test.partition("::")[0]).is_file()
    ] == []


def test_the_real_night_travels_as_json() -> None:
    assert real_night() == [Planned.from_json(item.to_json()) for item in real_night()]
