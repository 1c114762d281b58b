from __future__ import annotations

from collections.abc import Mapping
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from matrix.ask.fit.candidates import Candidate, axes
from matrix.ask.fit.fit_answer import ReleaseSearch
from matrix.ask.fit.rules import Rejection, Rules
from tests.profiles import tries
from tests.unit.ask.fit.questions import recorded, wishes

NAMES = ("a", "b", "c", "d")
VALUES = ("3", "2", "1")
# Sets of (axis, version) that exclude each other.
CLAUSES = st.lists(
    st.dictionaries(st.sampled_from(NAMES), st.sampled_from(VALUES), min_size=1, max_size=3), max_size=14
)


def small() -> dict[str, list[Candidate]]:
    return {name: [Candidate(name, value, {name: value}) for value in VALUES] for name in NAMES}


@given(CLAUSES)
@tries(200)
def test_search_finds_the_first_set_of_brute_force(clauses: list[dict[str, str]]) -> None:
    def reject(chosen: Mapping[str, Candidate], axis: str) -> Rejection | None:
        versions = {name: candidate.version for name, candidate in chosen.items()}
        for clause in clauses:
            if axis in clause and clause.items() <= versions.items():
                return Rejection(str(clause), frozenset(clause))
        return None

    every = (dict(zip(NAMES, values, strict=True)) for values in product(VALUES, repeat=len(NAMES)))
    expected = next((one for one in every if not any(clause.items() <= one.items() for clause in clauses)), None)
    found = ReleaseSearch(small(), reject).best()
    assert (None if found is None else {name: one.version for name, one in found.items()}) == expected


def test_axis_without_candidates_has_no_set() -> None:
    assert ReleaseSearch({**small(), "e": []}, lambda chosen, axis: None).best() is None


def test_search_jumps_back_to_the_conflict() -> None:
    def reject(chosen: Mapping[str, Candidate], axis: str) -> Rejection | None:
        fits = axis != "d" or chosen["a"].version == "1"
        return None if fits else Rejection("a, d", frozenset("ad"))

    search = ReleaseSearch(small(), reject)
    found = search.best()
    assert found
    assert found["a"].version == "1"
    assert search.tried < 30  # chronological backtracking tries 80


@given(
    st.sampled_from(["driver=550", "driver=580 gpu=B200", "driver=535 gpu=A100", ""]),
    st.lists(st.sampled_from(range(0, 25, 2)), min_size=2, max_size=2, unique=True),
    st.lists(st.sampled_from(range(12)), min_size=2, max_size=2, unique=True),
    st.lists(st.sampled_from(range(0, 20, 3)), min_size=2, max_size=2, unique=True),
)
@tries(15)
def test_no_newer_set_of_releases_passes(words: str, cores: list[int], engines: list[int], torches: list[int]) -> None:
    """Brute force over the rules of the whole sets, on a few releases of each axis."""
    asked = wishes(f"flash-attn {words}")
    every = axes(recorded(), asked)
    small_axes = {name: candidates[:2] for name, candidates in every.items()}
    for name, places in (("megatron-core", cores), ("transformer-engine", engines), ("torch", torches)):
        small_axes[name] = [every[name][place % len(every[name])] for place in sorted(places)]
    rules = Rules(recorded(), asked)

    def passes(chosen: dict[str, Candidate]) -> bool:
        return all(rules.rejection(chosen, axis) is None for axis in chosen)

    sets = (dict(zip(small_axes, one, strict=True)) for one in product(*small_axes.values()))
    assert ReleaseSearch(small_axes, rules.rejection).best() == next(filter(passes, sets), None)
