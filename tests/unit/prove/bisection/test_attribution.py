"""Delta debugging over the packages of two stacks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.ground.errors import MatrixError
from matrix.prove.bisection.attribution import Attribution, Carrier, Packages, WrongStackError, attribute
from matrix.prove.bisection.noise import ProbeResult

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


def test_mixtures_follow_delta_debugging() -> None:
    """Halves, then quarters and what remains without one; then one part fewer. No mixture is probed twice."""
    rounds: list[list[str]] = []

    def probe(mixtures: Sequence[Packages]) -> list[ProbeResult]:
        rounds.append(["".join(sorted(taken)) for taken in mixtures])
        return [ProbeResult.BAD if taken >= {"a", "d"} else ProbeResult.GOOD for taken in mixtures]

    assert attribute("abcdefgh", probe).carriers == (Carrier(frozenset("ad")),)
    assert rounds == [
        [""],
        ["abcdefgh"],
        ["aceg", "bdfh"],
        ["ae", "bf", "cg", "dh", "bcdfgh", "acdegh", "abdefh", "abcefg"],
        ["cdgh", "adeh"],
        ["a", "d", "e", "h", "deh", "aeh", "adh", "ade"],
        ["ah", "ad"],
        ["bcefgh"],
    ]


def test_bad_quarter_is_halved_next() -> None:
    """The half with the culprit can't be built: a quarter of it is bad, and has two packages."""
    rounds: list[list[str]] = []

    def probe(mixtures: Sequence[Packages]) -> list[ProbeResult]:
        names = ["".join(sorted(taken)) for taken in mixtures]
        rounds.append(names)
        bad = {"a", "ae", "abcdefgh"}
        return [
            ProbeResult.BAD if name in bad else ProbeResult.SKIP if name == "aceg" else ProbeResult.GOOD
            for name in names
        ]

    assert attribute("abcdefgh", probe).carriers == (Carrier(frozenset("a")),)
    assert rounds[3:] == [
        ["ae", "bf", "cg", "dh", "bcdfgh", "acdegh", "abdefh", "abcefg"],
        ["a", "e"],
        ["bcdefgh"],
    ]


def test_carrier_of_two_may_be_doubtful() -> None:
    """Without mcore the stack can't be built: te alone may be the cause."""
    attribution = attributed([frozenset({"mcore", "te"})], ("mcore", "te", "torch"), [frozenset({"te"})])
    assert attribution.carriers == (Carrier(frozenset({"mcore", "te"}), doubtful=frozenset({"mcore"})),)


@pytest.mark.parametrize(
    ("results", "taken", "message"),
    [
        ({"": ProbeResult.BAD, "te": ProbeResult.BAD}, "", "the good stack is bad"),
        ({"": ProbeResult.GOOD, "te": ProbeResult.GOOD}, "te", "the bad stack is good"),
        ({"": ProbeResult.GOOD, "te": ProbeResult.SKIP}, "te", "the bad stack is skip"),
    ],
)
def test_mislabeled_stack_stops_the_attribution(results: dict[str, ProbeResult], taken: str, message: str) -> None:
    with pytest.raises(WrongStackError, match=f"^{message}$") as caught:
        attribute(["te"], lambda mixtures: [results["".join(packages)] for packages in mixtures])

    assert (caught.value.taken, caught.value.seen) == (frozenset({taken} - {""}), results[taken])


def test_probe_answers_for_every_mixture() -> None:
    with pytest.raises(ValueError, match="shorter"):
        attribute(["te"], lambda mixtures: [])


def test_identical_stacks_are_rejected() -> None:
    with pytest.raises(MatrixError, match="do not differ"):
        attribute([], lambda mixtures: [ProbeResult.GOOD for _ in mixtures])
