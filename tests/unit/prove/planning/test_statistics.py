"""The counts of `megatrix plan --stats`, on a catalog small enough to count by eye."""

from __future__ import annotations

from matrix.ground.catalog.failure import Level
from matrix.ground.catalog.stack import BASE, DRIVER, MCORE, TE
from matrix.ground.verdicts.planned import Reason, ReasonKind
from matrix.prove.planning.covering import pairwise
from matrix.prove.planning.night import everything, night
from matrix.prove.planning.statistics import Counts, is_known, product, reasons, statistics
from tests.unit.catalogs import case, catalog, clause, exclusion, failure, masked, planned, real, stack

LEVELS = (Level.CONTRACT, Level.CPU)
# 3 bases (torch 2.3.1, 2.4.0, 2.5.1) x 3 megatron-core releases (0.7, 0.8, 0.9), one boundary on either axis
ENTRY = failure(affected=(clause(mcore="<0.9", torch=">=2.4"),), works=(clause(mcore=">=0.9"), clause(torch="<2.4")))


def test_the_product_uses_the_failure_s_axes() -> None:
    axes = {
        (BASE, MCORE): 3 * 3,
        (MCORE, TE): 3 * 3,
        (BASE, MCORE, TE, DRIVER): 3 * 3 * 3 * 1,
    }
    assert axes == {one: product(catalog(), failure(axes=one), LEVELS) for one in axes}


def test_a_case_counts_once_per_level() -> None:
    entry = failure(case=(case("a", (Level.CPU, Level.GPU)), case("b", (Level.GPU,))))
    counts = [product(catalog(), entry, levels) for levels in ([Level.CPU], [Level.GPU], [Level.CONTRACT], [*Level])]
    assert counts == [9, 18, 0, 27]


def test_allowed_excludes_constrained_cells() -> None:
    known = catalog(ENTRY, exclusions=(exclusion(mcore="==0.7.0"),))
    assert [one.allowed for one in statistics(known, [], LEVELS)] == [6, 6]


def test_masked_and_unexpected_cases_are_not_known() -> None:
    first = failure("first", affected=(clause(torch="==2.3.1"),))
    other = failure("other", affected=(clause(mcore="==0.7.0"),), masked=(masked("first"),))
    counted = {one.failure: (one.allowed, one.known) for one in statistics(catalog(first, other), [], LEVELS)}
    assert counted == {"first": (9, 3), "other": (9, 2), "all": (18, 5)}


def test_a_night_is_counted_by_its_reasons() -> None:
    """A corner of 2 x 2 cells is broken: two lines of two boundary cells on each axis, one cell in both."""
    known = catalog(ENTRY, stacks=(stack("break", "torch-2.4.0", "0.8.0"),))
    planned = night(known, pairwise, LEVELS)
    counted = statistics(known, planned, LEVELS)[0]
    assert len(planned) == counted.night
    assert counted == Counts("break", 9, 9, 9, boundary=7, pairwise=9, picked=0, stack=1, night=9)


def test_reasons_are_counted_by_kind() -> None:
    """A case with two reasons of a kind counts once."""
    boundaries = (Reason(ReasonKind.BOUNDARY, "picked cell"), Reason(ReasonKind.BOUNDARY, ""))
    assert reasons([planned(catalog(ENTRY), why=boundaries)]) == {"boundary": 1, "pairwise": 0, "picked": 0, "stack": 0}


def test_the_last_row_is_the_sum() -> None:
    known = catalog(failure("first", affected=(clause(torch="==2.3.1"),)), failure("other", axes=(MCORE, TE)))
    planned = night(known, pairwise, LEVELS)
    *each, total = statistics(known, planned, LEVELS)
    assert (total.night, total.allowed) == (len(planned), len(everything(known, LEVELS)))
    assert total.product == sum(one.product for one in each)


def test_real_night_has_only_known_cases() -> None:
    planned = night(real(), pairwise, LEVELS)
    strange = [item for item in planned if not is_known(real(), item)]
    assert [item.key for item in strange if item.why[0].kind is not ReasonKind.STACK] == []
