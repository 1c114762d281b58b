"""The search over simulated histories: the result is right, or ambiguous."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.ground.errors import MatrixError
from matrix.prove.bisection.noise import Noise, ProbeResult
from matrix.prove.bisection.search import (
    Ancestry,
    Attribution,
    Carrier,
    Packages,
    Plan,
    ResultKind,
    WrongEndError,
    WrongStackError,
    attribute,
    places,
    search,
    unchanged,
)
from tests.profiles import PROFILE, examples, tries
from tests.unit.prove.bisection.histories import History, allowed, rounds_needed

THOUSAND = Ancestry.chain(1001)  # the good end and 1,000 commits after it


@tries(150)
@given(
    culprit=st.integers(1, 1000),
    at_once=st.sampled_from([1, 2, 3, 7]),
    old=st.sampled_from([ProbeResult.GOOD, ProbeResult.BAD]),
)
def test_any_culprit_is_found_within_the_bound(culprit: int, at_once: int, old: ProbeResult) -> None:
    """Among a thousand commits, in either direction, with at most ceil(log_{k+1} n) rounds."""
    history = History(THOUSAND, culprit, old=old)
    found = search(THOUSAND, history, old, Plan(at_once=at_once))

    assert found.candidates == (culprit,)
    assert found.kind is (ResultKind.FIRST_BAD if old is ProbeResult.GOOD else ResultKind.FIRST_FIXED)
    assert found.confidence == 1
    assert found.rounds <= rounds_needed(1000, at_once)
    assert found.rounds == len(history.probed) - (2 if at_once == 1 else 1)
    assert max(map(len, history.probed)) <= at_once


@pytest.mark.draws
@pytest.mark.parametrize(("at_once", "rounds"), [(1, 10), (3, 5), (7, 4)])
def test_worst_culprit_takes_this_many_rounds(at_once: int, rounds: int) -> None:
    """Of a thousand commits: 10 rounds one at a time, 5 with three at once, 4 with seven."""
    worst = max(
        search(THOUSAND, History(THOUSAND, one), ProbeResult.GOOD, Plan(at_once)).rounds
        for one in range(1, 1001, max(1, 1000 // examples(143, PROFILE)))
    )

    assert rounds == worst


@tries(150)
@given(data=st.data(), culprit=st.integers(1, 1000), at_once=st.sampled_from([1, 3, 7]))
def test_candidates_are_culprit_and_adjacent_skips(data: st.DataObject, culprit: int, at_once: int) -> None:
    """Up to 20 % of the places are inconclusive: the candidates are exactly the inseparable places."""
    skips = data.draw(st.sets(st.integers(1, 999), max_size=200))
    found = search(THOUSAND, History(THOUSAND, culprit, skips=skips), ProbeResult.GOOD, Plan(at_once))

    first, last = culprit, culprit
    while first - 1 in skips:
        first -= 1
    while last in skips:
        last += 1
    assert found.candidates == tuple(range(first, last + 1))
    assert found.kind is (ResultKind.FIRST_BAD if first == last else ResultKind.AMBIGUOUS)


def test_long_inconclusive_stretch_takes_few_probes() -> None:
    """Two hundred commits in the middle don't build: the search does not probe them one by one."""
    skips = range(400, 600)
    for culprit in (3, 399, 600, 998):
        found = search(THOUSAND, History(THOUSAND, culprit, skips=skips), ProbeResult.GOOD)
        assert culprit in found.candidates
        assert found.kind is ResultKind.FIRST_BAD or culprit == 600
    counts = [
        search(THOUSAND, History(THOUSAND, one, skips=skips), ProbeResult.GOOD).probes for one in (3, 250, 750, 998)
    ]
    assert max(counts) <= 2 + 10 + 3


@pytest.mark.draws
@pytest.mark.parametrize("shows", [0.9, 0.5, 0.3])
def test_wrong_claims_stay_within_the_stated_error(shows: float) -> None:
    """A failure that shows in a part of its runs: at most 5 % of the claims are wrong, each with >= 95 % confidence."""
    noise, wrong, claims, seeds = Noise(shows=shows), 0, 0, examples(300, PROFILE)
    for seed in range(seeds):
        culprit = seed * 331 % 1000 + 1
        history = History(THOUSAND, culprit, noise=noise, seed=seed)
        try:
            found = search(THOUSAND, history, ProbeResult.GOOD, Plan(noise=noise))
        except WrongEndError:  # the bad end did not show the failure in its runs: no claim
            continue
        assert found.confidence >= 0.95
        if found.kind is not ResultKind.AMBIGUOUS:
            claims += 1
            wrong += found.candidates != (culprit,)

    assert claims > 0.93 * seeds
    assert wrong <= allowed(0.05, claims)


@tries(60)
@given(
    culprit=st.integers(1, 1000),
    at_once=st.sampled_from([1, 3, 7]),
    seed=st.integers(0, 10**9),
    old=st.sampled_from([ProbeResult.GOOD, ProbeResult.BAD]),
    skips=st.sets(st.integers(1, 999), max_size=200),
)
def test_noise_and_skips_stay_within_the_error(
    culprit: int, at_once: int, seed: int, old: ProbeResult, skips: set[int]
) -> None:
    """With an error of one in a million no claim is wrong: noise of both kinds, skips, both directions."""
    noise = Noise(shows=0.7, invents=0.05)
    history = History(THOUSAND, culprit, noise=noise, seed=seed, old=old, skips=skips)
    found = search(THOUSAND, history, old, Plan(at_once, noise, confidence=1 - 1e-6))

    assert culprit in found.candidates
    assert found.confidence >= 1 - 1e-6
    assert found.kind is ResultKind.AMBIGUOUS or found.candidates == (culprit,)


@pytest.mark.parametrize(("shows", "repeats"), [(0.9, 3), (0.5, 8), (0.3, 15)])
def test_good_takes_the_repeats_of_the_statistics(shows: float, repeats: int) -> None:
    """5 % over 8 steps: (1 - shows) ** repeats is below 0.05 / 8, and one repeat fewer would not be."""
    order, noise = Ancestry.chain(257), Noise(shows=shows)
    found = search(order, History(order, 256, noise=noise, seed=5), ProbeResult.GOOD, Plan(noise=noise))

    assert {tally.runs[ProbeResult.GOOD] for tally in found.tallies.values() if tally.settled is ProbeResult.GOOD} == {
        repeats
    }


def test_several_changes_make_the_result_ambiguous() -> None:
    """Broken at 200, fixed at 450, broken at 700: seven probes detect it; the candidate is the last change."""
    found = search(THOUSAND, History(THOUSAND, [200, 450, 700]), ProbeResult.GOOD, Plan(at_once=7))

    assert found.kind is ResultKind.AMBIGUOUS
    assert found.candidates == (700,)
    assert found.flips
    assert all(found.tallies[bad].settled is ProbeResult.BAD and bad < good for bad, good in found.flips)


def test_checks_detect_changes_that_the_search_misses() -> None:
    """One probe at a time never probes an excluded place; checks do."""
    history = [200, 450, 700]
    blind = search(THOUSAND, History(THOUSAND, [100, 120, 700]), ProbeResult.GOOD)
    checked = search(THOUSAND, History(THOUSAND, history), ProbeResult.GOOD, Plan(checks=8))

    assert (blind.kind, blind.flips) == (ResultKind.FIRST_BAD, ())
    assert checked.kind is ResultKind.AMBIGUOUS
    assert checked.flips


def test_checks_keep_a_right_claim() -> None:
    """A history that changes once passes its checks; they cost eight probes and no round."""
    found = search(THOUSAND, History(THOUSAND, 321), ProbeResult.GOOD, Plan(checks=8))

    assert (found.kind, found.candidates, found.rounds, found.probes) == (ResultKind.FIRST_BAD, (321,), 10, 20)


@pytest.mark.parametrize(
    ("culprit", "skips", "place", "seen"),
    [
        (5000, (), 1000, ProbeResult.GOOD),
        (0, (), 0, ProbeResult.BAD),
        (500, (1000,), 1000, ProbeResult.SKIP),
        (500, (0,), 0, ProbeResult.SKIP),
    ],
)
def test_wrong_end_stops_before_the_search(culprit: int, skips: tuple[int, ...], place: int, seen: ProbeResult) -> None:
    history = History(THOUSAND, culprit, skips=skips)
    with pytest.raises(WrongEndError) as caught:
        search(THOUSAND, history, ProbeResult.GOOD)

    assert (caught.value.place, caught.value.seen) == (place, seen)
    assert len(history.probed) <= 2


def test_two_neighbours_need_no_search() -> None:
    """Good and bad are adjacent: the ends are the whole search."""
    order = Ancestry.chain(2)
    found = search(order, History(order, 1), ProbeResult.GOOD, Plan(at_once=7))

    assert (found.kind, found.candidates, found.rounds, found.probes) == (ResultKind.FIRST_BAD, (1,), 0, 2)


Parents = list[list[int]]


@st.composite
def merged_parents(draw: st.DrawFn) -> Parents:
    """Return the parents of commits, one or two of each, all between the first and the last."""
    parents: list[list[int]] = [[]]
    for place in range(1, draw(st.integers(2, 60))):
        parents.append(draw(st.lists(st.integers(max(0, place - 6), place - 1), min_size=1, max_size=2)))
    heads = set(range(len(parents))) - {parent for before in parents for parent in before}
    return [*parents, sorted(heads)]


@tries(200)
@given(data=st.data(), order=merged_parents().map(Ancestry.of_parents), at_once=st.sampled_from([1, 3]))
def test_culprit_is_found_in_merged_histories(data: st.DataObject, order: Ancestry, at_once: int) -> None:
    """The failure is in every descendant of its commit, and in nothing on the other side of a merge."""
    culprit = data.draw(st.integers(1, len(order) - 1))
    skips = data.draw(st.sets(st.integers(1, max(1, len(order) - 2)), max_size=len(order) // 5))
    skips -= {len(order) - 1}
    found = search(order, History(order, culprit, skips=skips), ProbeResult.GOOD, Plan(at_once))

    assert culprit in found.candidates
    assert not found.flips
    assert found.kind is ResultKind.FIRST_BAD or set(found.candidates) & skips


@tries(200)
@given(data=st.data(), parents=merged_parents(), at_once=st.sampled_from([1, 3]))
def test_left_out_commits_never_change_the_result(data: st.DataObject, parents: Parents, at_once: int) -> None:
    """Commits with the content of a parent are no places of the search, which names the same culprit."""
    full = Ancestry.of_parents(parents)
    culprit = data.draw(st.integers(1, len(full) - 1))
    content: list[object] = []
    for place, before in enumerate(parents):
        like = [one for one in before if full.below[one] >> culprit & 1 == full.below[place] >> culprit & 1]
        twin = data.draw(st.sampled_from([None, *like]))
        content.append(place if twin is None else content[twin])
    same = unchanged(parents, content)
    left = [place for place in range(len(full)) if place not in same]
    order, history = Ancestry.of_parents(parents, same), History(full, culprit)
    found = search(order, lambda places: [history.seen(left[one]) for one in places], ProbeResult.GOOD, Plan(at_once))

    assert [left[one] for one in found.candidates] == [culprit]
    assert found.candidates == tuple(
        left.index(one) for one in search(full, history, ProbeResult.GOOD, Plan(at_once)).candidates
    )


@tries(100)
@given(
    culprit=st.integers(1, 1000), suspects=st.sets(st.integers(0, 1000), max_size=30), at_once=st.sampled_from([1, 7])
)
def test_suspects_never_change_the_result(culprit: int, suspects: set[int], at_once: int) -> None:
    """With right or wrong suspects, the result is the culprit; a wrong suspect costs a few probes."""
    found = search(THOUSAND, History(THOUSAND, culprit), ProbeResult.GOOD, Plan(at_once), suspects=suspects)

    assert (found.kind, found.candidates) == (ResultKind.FIRST_BAD, (culprit,))
    assert found.rounds <= rounds_needed(1000, at_once) + 2 + len(suspects).bit_length()


@tries(200)
@given(data=st.data(), length=st.integers(2, 24), at_once=st.sampled_from([1, 3]))
def test_order_of_suspects_never_changes_result(data: st.DataObject, length: int, at_once: int) -> None:
    """On merges, and with inconclusive places, the candidates are those of the search without suspects."""
    parents = [[index - 1, *data.draw(st.sets(st.integers(0, index - 1), max_size=2))] for index in range(1, length)]
    order = Ancestry.of_parents([[], *parents])
    inner = st.sets(st.integers(1, length - 2)) if length > 2 else st.just(set[int]())
    culprit, skips = data.draw(st.integers(1, length - 1)), data.draw(inner)
    hints = [data.draw(st.sets(st.integers(0, length - 1))) for _ in range(4)]
    plain = search(order, History(order, culprit, skips=skips), ProbeResult.GOOD, Plan(at_once))
    hinted = search(
        order,
        History(order, culprit, skips=skips),
        ProbeResult.GOOD,
        Plan(at_once),
        cheap=hints[0],
        suspects=hints[1],
        likelier=lambda: hints[2:],
    )
    assert (hinted.kind, hinted.candidates, hinted.flips) == (plain.kind, plain.candidates, plain.flips)


def test_likelier_suspects_go_first() -> None:
    """They are asked for when both ends are known; the last group comes first."""
    history = History(THOUSAND, 123)
    further = [range(100, 300), [123]]
    found = search(
        THOUSAND, history, ProbeResult.GOOD, suspects=range(900), likelier=lambda: further * len(history.probed)
    )
    assert (found.candidates, sorted(found.tallies)) == ((123,), [0, 122, 123, 1000])


def test_right_suspect_takes_two_probes_after_ends() -> None:
    """The probes are the suspect and the commit before it."""
    found = search(THOUSAND, History(THOUSAND, 123), ProbeResult.GOOD, suspects=[123])

    assert (found.candidates, sorted(found.tallies)) == ((123,), [0, 122, 123, 1000])


def test_cheap_places_go_before_all_others() -> None:
    """If their results suffice, the search probes nothing else."""
    found = search(THOUSAND, History(THOUSAND, 500), ProbeResult.GOOD, cheap=[3, 499, 500, 900])

    assert found.candidates == (500,)
    assert set(found.tallies) <= {0, 1000, 3, 499, 500, 900}


def test_culprits_on_both_sides_of_merge_are_ambiguous() -> None:
    """0 - 1 (bad) and 0 - 2 (bad), merged in 3: their common ancestor is good."""
    order = Ancestry.of_parents([[], [0], [0], [1, 2]])
    results = {0: ProbeResult.GOOD, 1: ProbeResult.BAD, 2: ProbeResult.BAD, 3: ProbeResult.BAD}
    found = search(order, lambda places: [results[one] for one in places], ProbeResult.GOOD, Plan(at_once=3))

    assert found.kind is ResultKind.AMBIGUOUS
    assert found.flips == ((1, 2),)


@pytest.mark.parametrize("made", [{"at_once": 0}, {"confidence": 1.0}, {"confidence": 0.0}, {"checks": -1}])
def test_plan_out_of_range_is_rejected(made: dict[str, float]) -> None:
    with pytest.raises(MatrixError):
        Plan(**made)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "skips", "plan", "hints", "rounds"),
    [
        (11, [], Plan(), {}, "0|16|8|12|10|11"),
        (1, [], Plan(), {}, "0|16|8|4|2|1"),
        (16, [], Plan(), {}, "0|16|8|12|14|15"),
        (11, [], Plan(at_once=3), {}, "0 16|4 8 12|9 10 11"),
        (11, [8], Plan(), {}, "0|16|8|4|7|9|12|10|11"),
        (11, [8, 4, 12], Plan(), {}, "0|16|8|4|12|2|3|5|13|11|6|7|9|10"),
        (11, [5, 6, 10, 11], Plan(at_once=2), {}, "0 16|5 10|2 8|9 13|11 12"),
        (11, [], Plan(), {"suspects": [11]}, "0|16|10|11"),
        (11, [], Plan(), {"suspects": [3, 3]}, "0|16|3|9|12|10|11"),
        (11, [], Plan(at_once=2), {"suspects": [3, 11]}, "0 16|3 10|11 12"),
        (11, [], Plan(), {"cheap": [10, 11]}, "0|16|10|11"),
        (11, [], Plan(), {"cheap": [3]}, "0|16|3|9|12|10|11"),
        (11, [], Plan(checks=3), {}, "0|16|8|12|10|11|2|6|14"),
        (11, [], Plan(at_once=2, checks=3), {}, "0 16|5 10|12 14|11|2 7|13"),
        (11, [], Plan(checks=1), {}, "0|16|8|12|10|11|6"),
    ],
)
@pytest.mark.parametrize("old", [ProbeResult.GOOD, ProbeResult.BAD])
def test_search_probes_these_places(
    changes: int, skips: list[int], plan: Plan, hints: dict[str, Any], rounds: str, old: ProbeResult
) -> None:
    """Both ends, then even cuts; after rounds of skips the cuts move: by a quarter, to three quarters, an eighth."""
    order = Ancestry.chain(17)
    history = History(order, changes, skips=skips, old=old)
    found = search(order, history, old, plan, **hints)
    assert "|".join(" ".join(map(str, places)) for places in history.probed) == rounds
    assert changes in found.candidates
    assert found.kind is ResultKind.AMBIGUOUS or found.candidates == (changes,)
    assert (found.confidence, found.flips) == (1, ())


def test_pairs_that_contradict_one_change_are_named() -> None:
    """Of a change back: each changed place with the next unchanged one."""
    order = Ancestry.chain(17)
    found = search(order, History(order, [3, 5, 11]), ProbeResult.GOOD, Plan(checks=8))
    assert (found.kind, found.candidates, found.flips) == (ResultKind.AMBIGUOUS, (11,), ((3, 5), (4, 5)))
    assert found.rounds == 4


def test_unsettled_places_are_probed_again_together() -> None:
    """The bad end shows the failure in its second run; six good runs settle the good end, seven the middle."""
    order, noise = Ancestry.chain(3), Noise(shows=0.5)
    history = History(order, 2, noise=noise, seed=1)
    found = search(order, history, ProbeResult.GOOD, Plan(at_once=2, noise=noise))
    assert history.probed == [[0, 2], [0, 2], *[[0]] * 4, *[[1]] * 7]
    assert found.candidates == (2,)
    assert found.probes == 15


@pytest.mark.parametrize(
    ("length", "at_once", "confidence"), [(3, 1, 0.95625), (257, 1, 0.9543895747599451), (257, 3, 0.9532544378698224)]
)
def test_error_is_spent_in_even_shares(length: int, at_once: int, confidence: float) -> None:
    """Of the error that is left, a place takes a share for each place still to come, and one remains.

    With three places: 5 % / 2 for the first end, of the rest a half for the second, and again for the middle.
    """
    order, noise = Ancestry.chain(length), Noise(shows=0.9, invents=0.01)
    found = search(order, History(order, length - 1, noise=noise, seed=5), ProbeResult.GOOD, Plan(at_once, noise))
    settled = sum(tally.settled is not ProbeResult.SKIP for tally in found.tallies.values())
    assert found.candidates == (length - 1,)
    assert found.confidence == pytest.approx(confidence)
    assert settled == len(found.tallies)


def test_wrong_end_error_names_both_results() -> None:
    with pytest.raises(WrongEndError, match=r"^place 16 is good, not bad, after 1 runs$"):
        search(Ancestry.chain(17), lambda places: [ProbeResult.GOOD for _ in places], ProbeResult.GOOD)


def test_probe_answers_for_every_place() -> None:
    with pytest.raises(ValueError, match="shorter"):
        search(Ancestry.chain(17), lambda places: [], ProbeResult.GOOD)


# 1 has two children, 2 and 3, which 4 merges.
DIAMOND = Ancestry.of_parents([[], [0], [1], [1], [2, 3]])


def test_inferred_parent_of_the_result_is_checked() -> None:
    """A good 2 shows that 1 is good, too; it is probed in the end, since 3 is the first bad one by its result."""
    history = History(DIAMOND, 3)
    found = search(DIAMOND, history, ProbeResult.GOOD)
    assert history.probed == [[0], [4], [2], [3], [1]]
    assert (found.kind, found.candidates, found.flips) == (ResultKind.FIRST_BAD, (3,), ())


def test_change_back_is_named_by_a_descendant() -> None:
    """1 is bad and its child 3 is good; 2 does not descend from 3."""
    results = dict(zip(range(5), map(ProbeResult, ("good", "bad", "bad", "good", "bad")), strict=True))
    found = search(DIAMOND, lambda places: [results[one] for one in places], ProbeResult.GOOD, Plan(at_once=5))
    assert (found.kind, found.candidates, found.flips) == (ResultKind.AMBIGUOUS, (2,), ((1, 3),))


@pytest.mark.parametrize(("shows", "runs"), [(0.5, 5), (0.9, 2)])
def test_check_is_repeated_until_it_is_confident(shows: float, runs: int) -> None:
    """(1 - shows) ** runs is 5 % or less: a check spends no error of the claim."""
    order, noise = Ancestry.chain(17), Noise(shows=shows)
    history = History(order, 16, noise=noise, seed=5)
    unchecked = search(order, History(order, 16, noise=noise, seed=5), ProbeResult.GOOD, Plan(noise=noise))
    found = search(order, history, ProbeResult.GOOD, Plan(noise=noise, checks=1))
    (checked,) = found.tallies.keys() - unchecked.tallies.keys()
    assert found.tallies[checked].runs == {ProbeResult.GOOD: runs}
    assert found.confidence == unchecked.confidence


def test_noisy_neighbours_are_both_settled() -> None:
    """Two points alone: neither end may spend all of the error."""
    order = Ancestry.chain(2)
    result = search(order, History(order, 1, noise=Noise(0.5)), ProbeResult.GOOD, Plan(noise=Noise(0.5)))
    assert (result.candidates, result.confidence > 0.95) == ((1,), True)


# 0 - 1 - 2 - - - 5
#      \         /
#       3 - 4 - -
FORK = [[], [0], [1], [1], [3], [2, 4]]


def ancestors(order: Ancestry) -> list[list[int]]:
    return [list(places(mask)) for mask in order.below]


def test_release_descends_from_all_before_it() -> None:
    assert ancestors(Ancestry.chain(3)) == [[0], [0, 1], [0, 1, 2]]
    assert Ancestry.of_parents([[], [0], [1]]) == Ancestry.chain(3)
    assert len(Ancestry.chain(3)) == 3


def test_commit_descends_from_all_its_parents() -> None:
    assert ancestors(Ancestry.of_parents(FORK)) == [
        [0],
        [0, 1],
        [0, 1, 2],
        [0, 1, 3],
        [0, 1, 3, 4],
        [0, 1, 2, 3, 4, 5],
    ]


@pytest.mark.parametrize(
    ("left_out", "expected"),
    [
        ([], [[], [0], [1], [1], [3], [4, 2]]),
        ([3], [[], [0], [1], [1], [3, 2]]),  # 4 takes its place and descends from 1
        ([1, 3], [[], [0], [0], [2, 1]]),
        ([2, 3, 4], [[], [0], [1]]),
    ],
)
def test_left_out_commits_connect_the_others(left_out: list[int], expected: list[list[int]]) -> None:
    order = Ancestry.of_parents(FORK, left_out)
    assert [order.parents(place) for place in range(len(order))] == expected


def test_ancestor_of_a_parent_is_no_parent() -> None:
    """2 names both 1 and 0 as parents."""
    assert Ancestry.of_parents([[], [0], [0, 1]]).parents(2) == [1]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("abcdef", {}),
        ("aabcde", {1: 0}),
        ("abbbcd", {2: 1, 3: 1}),  # both sides of the fork
        ("aabcdd", {1: 0}),  # the last commit is an end
        ("aaaaaa", {1: 0, 2: 1, 3: 1, 4: 3}),
        ("abacad", {}),  # equal to a commit that is no parent
    ],
)
def test_commit_like_a_parent_is_unchanged(content: str, expected: dict[int, int]) -> None:
    assert unchanged(FORK, content) == expected


def test_first_parent_of_equal_content_is_named() -> None:
    assert unchanged([[], [0], [0], [2, 1], [3]], "abbbc") == {3: 2}


@pytest.mark.parametrize(("mask", "expected"), [(0, []), (1, [0]), (0b101100, [2, 3, 5])])
def test_places_of_a_mask(mask: int, expected: list[int]) -> None:
    assert list(places(mask)) == expected


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
