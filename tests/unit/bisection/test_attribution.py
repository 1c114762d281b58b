"""Delta debugging over the packages of two stacks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.bisection.attribution import Attribution, Carrier, Packages, WrongStackError, attribute
from matrix.bisection.noise import ProbeResult
from matrix.errors import MatrixError

ALL = ("cuda", "driver", "mcore", "nccl", "python", "te", "torch")


def attributed(
    culprits: Sequence[frozenset[str]], packages: Sequence[str] = ALL, unknown: Sequence[frozenset[str]] = ()
) -> Attribution:
    """Attribute among mixtures that are bad if they hold a whole culprit; those in `unknown` are inconclusive."""

    def probe(mixtures: Sequence[Packages]) -> list[ProbeResult]:
        return [
            ProbeResult.SKIP
            if taken in unknown
            else ProbeResult.BAD
            if any(one <= taken for one in culprits)
            else ProbeResult.GOOD
            for taken in mixtures
        ]

    return attribute(packages, probe)


@given(st.frozensets(st.sampled_from(ALL), min_size=1))
def test_carrier_is_exactly_the_culprit(culprit: frozenset[str]) -> None:
    assert attributed([culprit]).carriers == (Carrier(culprit),)


@given(st.frozensets(st.sampled_from(ALL[:3]), min_size=1), st.frozensets(st.sampled_from(ALL[3:]), min_size=1))
def test_two_independent_causes_are_both_found(one: frozenset[str], other: frozenset[str]) -> None:
    """Fixing only the first would not help: the second still breaks the stack."""
    assert {carrier.packages for carrier in attributed([one, other]).carriers} == {one, other}


@given(
    culprit=st.frozensets(st.sampled_from(ALL), min_size=1),
    unknown=st.lists(st.frozensets(st.sampled_from(ALL), min_size=1, max_size=6), max_size=20),
)
def test_inconclusive_mixtures_never_cause_a_wrong_carrier(
    culprit: frozenset[str], unknown: list[frozenset[str]]
) -> None:
    """The carrier always holds the culprit; a larger carrier has doubtful packages."""
    found = attributed([culprit], unknown=[one for one in unknown if len(one) < len(ALL)])

    (carrier,) = found.carriers
    assert culprit <= carrier.packages
    assert carrier.packages == culprit or carrier.doubtful


def test_one_of_three_takes_at_most_five_mixtures() -> None:
    """Both ends, then the halves; the half with one package is the carrier."""
    found = attributed([frozenset({"te"})], ("mcore", "te", "torch"))

    assert found.carriers == (Carrier(frozenset({"te"})),)
    assert len(found.probed) <= 5


@pytest.mark.parametrize(
    ("seen", "taken"), [(ProbeResult.GOOD, frozenset({"torch"})), (ProbeResult.BAD, frozenset[str]())]
)
def test_mislabeled_stack_stops_the_attribution(seen: ProbeResult, taken: frozenset[str]) -> None:
    with pytest.raises(WrongStackError) as caught:
        attribute(["torch"], lambda mixtures: [seen for _ in mixtures])

    assert (caught.value.taken, caught.value.seen) == (taken, seen)


def test_identical_stacks_are_rejected() -> None:
    with pytest.raises(MatrixError, match="do not differ"):
        attribute([], lambda mixtures: [ProbeResult.GOOD for _ in mixtures])
