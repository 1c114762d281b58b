"""Delta debugging over the packages of two stacks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.bisection.attribution import Attribution, Carrier, Packages, WrongStackError, attribute
from matrix.bisection.noise import Seen
from matrix.errors import MatrixError

ALL = ("cuda", "driver", "mcore", "nccl", "python", "te", "torch")


def attributed(
    culprits: Sequence[frozenset[str]], packages: Sequence[str] = ALL, unknown: Sequence[frozenset[str]] = ()
) -> Attribution:
    """Bad is what holds one of the culprits whole; what is `unknown` says nothing."""

    def probe(mixtures: Sequence[Packages]) -> list[Seen]:
        return [
            Seen.SKIP if taken in unknown else Seen.BAD if any(one <= taken for one in culprits) else Seen.GOOD
            for taken in mixtures
        ]

    return attribute(packages, probe)


@given(st.frozensets(st.sampled_from(ALL), min_size=1))
def test_exactly_the_packages_that_carry_it_are_named(culprit: frozenset[str]) -> None:
    assert attributed([culprit]).carriers == (Carrier(culprit),)


@given(st.frozensets(st.sampled_from(ALL[:3]), min_size=1), st.frozensets(st.sampled_from(ALL[3:]), min_size=1))
def test_two_causes_that_are_enough_alone_are_both_named(one: frozenset[str], other: frozenset[str]) -> None:
    """Putting the first right would not help: the second still breaks it."""
    assert {carrier.packages for carrier in attributed([one, other]).carriers} == {one, other}


@given(
    culprit=st.frozensets(st.sampled_from(ALL), min_size=1),
    unknown=st.lists(st.frozensets(st.sampled_from(ALL), min_size=1, max_size=6), max_size=20),
)
def test_mixtures_that_say_nothing_never_lead_to_a_wrong_name(
    culprit: frozenset[str], unknown: list[frozenset[str]]
) -> None:
    """What is named always holds the culprit, and whatever is too much is said to be doubtful."""
    told = attributed([culprit], unknown=[one for one in unknown if len(one) < len(ALL)])

    (carrier,) = told.carriers
    assert culprit <= carrier.packages
    assert carrier.packages == culprit or carrier.doubtful


def test_one_of_three_is_found_with_four_mixtures() -> None:
    """Both ends, then the halves; the half with one package is the answer."""
    told = attributed([frozenset({"te"})], ("mcore", "te", "torch"))

    assert told.carriers == (Carrier(frozenset({"te"})),)
    assert len(told.asked) <= 5


@pytest.mark.parametrize(("seen", "taken"), [(Seen.GOOD, frozenset({"torch"})), (Seen.BAD, frozenset[str]())])
def test_a_stack_that_does_not_behave_as_said_stops_it(seen: Seen, taken: frozenset[str]) -> None:
    with pytest.raises(WrongStackError) as caught:
        attribute(["torch"], lambda mixtures: [seen for _ in mixtures])

    assert (caught.value.taken, caught.value.seen) == (taken, seen)


def test_stacks_that_do_not_differ_are_refused() -> None:
    with pytest.raises(MatrixError, match="do not differ"):
        attribute([], lambda mixtures: [Seen.GOOD for _ in mixtures])
