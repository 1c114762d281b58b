"""The smoke of a night: a broken and a working case of a few failures, on each base or on the smallest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from matrix.ground.catalog.failure import CaseNeed, Expectation, Failure, Level
from matrix.ground.catalog.model import Catalog
from matrix.ground.verdicts.planned import Planned
from matrix.prove.planning.night import REPORT, SMOKE, night, pairwise, smoke
from tests.unit.catalogs import case, catalog, clause, failure, real, real_night, wheels

SIZES = {"2.3.1": 4.0, "2.4.0": 2.0, "2.5.1": 3.0}  # GB by torch: the smallest is in the middle
TURNS = ("2.4.0", "2.5.1", "2.3.1")
BOTH: dict[str, Any] = {"affected": (clause(mcore="<0.9"),), "works": (clause(mcore=">=0.9"),)}
WORKS: dict[str, Any] = {"works": (clause(mcore=">=0.7"),)}
OLD = clause(torch="<2.4")


def entries(count: int, **further: Any) -> list[Failure]:
    return [failure(f"break-{number}", **{**BOTH, **further}) for number in range(count)]


def known(*failures: Failure, sizes: dict[str, float] = SIZES) -> Catalog:
    return catalog(*failures, wheels=tuple(wheels(torch, disk_gb=size) for torch, size in sizes.items()))


def chosen(entries: Catalog, bases: int = 9) -> list[Planned]:
    return smoke(entries, night(entries, pairwise), bases)


def pairs(items: list[Planned]) -> dict[str, list[str]]:
    """Return by failure the expectations of its cases, and their base."""
    found: dict[str, list[str]] = {}
    for item in items:
        found.setdefault(f"{item.failure} {item.cell.base}", []).append(item.expectation.value)
    return {name: sorted(values) for name, values in found.items()}


TABLE: dict[str, tuple[Catalog, int, dict[str, list[str]]]] = {
    "the bases take turns, the smallest first": (
        known(*entries(3)),
        9,
        {f"break-{number} torch-{torch}": ["broken", "works"] for number, torch in enumerate(TURNS)},
    ),
    "the smallest base alone": (
        known(*entries(2)), 1, {f"break-{number} torch-2.4.0": ["broken", "works"] for number in range(2)},
    ),
    "at most five failures": (
        known(*entries(SMOKE + 2)), 1, {f"break-{number} torch-2.4.0": ["broken", "works"] for number in range(SMOKE)},
    ),
    "one failure of a topic": (known(*entries(3, topic="moe")), 1, {"break-0 torch-2.4.0": ["broken", "works"]}),
    "one case where no failure has both": (known(failure(**WORKS)), 1, {"break torch-2.4.0": ["works"]}),
    "no base without a size": (known(*entries(1), sizes=dict.fromkeys(SIZES, 0.0)), 9, {}),
    "nothing of an empty night": (known(), 9, {}),
}  # fmt: skip


@pytest.mark.parametrize("row", TABLE)
def test_smoke_has_both_sides_on_its_bases(row: str) -> None:
    entries, bases, expected = TABLE[row]
    assert pairs(chosen(entries, bases)) == expected


def test_fewer_ranks_go_first() -> None:
    entry = failure(**BOTH, case=(case("four", ranks=4), case("one", ranks=1)))
    assert {item.case for item in chosen(known(entry), 1)} == {"one"}


def test_cases_that_need_a_clone_are_left_out() -> None:
    entries = known(failure(**BOTH))
    planned = [replace(item, te_source="transformer-engine@main") for item in night(entries, pairwise)]
    assert smoke(entries, planned, 9) == []


def test_cases_with_a_need_are_left_out() -> None:
    needy = replace(case("tp2"), needs=(CaseNeed.MEGATRON_LM,))
    assert chosen(known(failure(**BOTH, case=(needy,)))) == []


def test_stacks_without_a_reproduction_are_left_out() -> None:
    entries = known(failure(**BOTH))
    planned = [replace(item, reproducible=False, case=REPORT) for item in night(entries, pairwise)]
    assert smoke(entries, planned, 9) == []


def test_smoke_of_the_project_is_small() -> None:
    """On each measured base, SMOKE failures of different topics; on the smallest base alone, too."""
    planned = real_night((Level.CPU,))
    for bases, count in ((9, 4), (1, 1)):
        items = smoke(real(), planned, bases)
        assert len({item.cell.base for item in items}) == count
        assert 2 * SMOKE <= len(items) < 2 * SMOKE + count
        assert {item.expectation for item in items} == {Expectation.BROKEN, Expectation.WORKS}
        assert [item for item in planned if item in items] == items
