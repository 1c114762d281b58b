"""The values of a name: choices by guard, collected keywords, truth, versions, scopes."""

from __future__ import annotations

import operator
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from matrix.read.api.guard import (
    AllOf,
    AnyOf,
    Config,
    Guard,
    Holds,
    Judge,
    Not,
    TeVersion,
    Truth,
    Unclear,
    all_of,
    negate,
)
from matrix.read.api.value import (
    MOST_CHOICES,
    MOST_PARTS,
    OF_TE,
    UNKNOWN,
    Anything,
    Choice,
    FixedVersion,
    Keywords,
    Literal,
    Outside,
    Reference,
    RunningVersion,
    Value,
    compare_versions,
    gather,
    guarded,
    is_none,
    merge,
    single,
    truth_of,
)
from tests.unit.read.api.sources import broken, te
from tests.unit.read.api.test_guard import Known

A, B, C = Config("a"), Config("b"), Config("c")
WORLDS = [{A: a, B: b, C: c} for a in (True, False) for b in (True, False) for c in (True, False)]
World = dict[Config, bool]
GUARDS: st.SearchStrategy[Guard] = st.recursive(
    st.sampled_from([A, B, C, True, False]),
    lambda inner: st.one_of(inner.map(negate), st.lists(inner, max_size=3).map(lambda parts: all_of(*parts))),
    max_leaves=6,
)
CHOICES = st.lists(st.tuples(GUARDS, st.sampled_from([Literal(n) for n in range(4)])), max_size=5)


def holds(guard: Guard, world: World) -> bool:
    if isinstance(guard, bool):
        return guard
    if isinstance(guard, Not):
        return not holds(guard.part, world)
    if isinstance(guard, (AllOf, AnyOf)):
        return (all if isinstance(guard, AllOf) else any)(holds(part, world) for part in guard.parts)
    assert isinstance(guard, Config)
    return world[guard]


def possible(choice: list[tuple[Guard, Value]] | Choice, world: World) -> set[Value]:
    """Return the values that a choice allows in one world."""
    return {value for guard, value in choice if holds(guard, world)}


@given(CHOICES)
def test_gather_keeps_each_possible_value_once(choice: list[tuple[Guard, Value]]) -> None:
    gathered = gather(choice)
    assert len({value for _, value in gathered}) == len(gathered)
    for world in WORLDS:
        assert possible(gathered, world) == possible(choice, world)


@given(GUARDS, CHOICES)
def test_under_keeps_values_where_the_guard_holds(guard: Guard, alternatives: list[tuple[Guard, Value]]) -> None:
    choice = gather(alternatives)
    for world in WORLDS:
        expected = possible(choice, world) if holds(guard, world) else set()
        assert possible(guarded(guard, choice), world) == expected


@given(GUARDS, CHOICES, CHOICES)
def test_merge_selects_by_the_guard(
    guard: Guard, one: list[tuple[Guard, Value]], other: list[tuple[Guard, Value]]
) -> None:
    first, second = gather(one), gather(other)
    for world in WORLDS:
        expected = first if holds(guard, world) else second
        assert possible(merge(guard, first, second), world) == possible(expected, world)


def test_too_many_values_are_unclear() -> None:
    values = [(Config(str(n)), Literal(n)) for n in range(MOST_CHOICES + 1)]
    assert gather(values) == single(OF_TE)
    assert len(gather(values[:-1])) == MOST_CHOICES


NAMES = st.sampled_from(["p", "q", "r"])
DICTS = st.lists(st.tuples(NAMES, GUARDS), max_size=3, unique_by=lambda entry: entry[0]).map(
    lambda entries: Keywords(tuple(entries))
)


@given(GUARDS, DICTS, DICTS)
def test_merged_keywords_are_those_of_the_branch(guard: Guard, first: Keywords, second: Keywords) -> None:
    def passed(keywords: Keywords, world: World) -> set[str]:
        return {name for name, when in keywords.entries if holds(when, world)}

    for world in WORLDS:
        merged = merge(guard, single(first), single(second))
        found = {name for when, one in merged if holds(when, world) and isinstance(one, Keywords)
                 for name in passed(one, world)}  # fmt: skip
        assert found == passed(first if holds(guard, world) else second, world)


def test_update_by_an_unknown_dictionary_opens_the_keywords() -> None:
    kept = Keywords((("p", True),))
    assert kept.updated([Keywords((("q", A),))], [("r", B)], more=False) == Keywords((("p", True), ("q", A), ("r", B)))
    assert kept.updated([Anything()], (), more=False).open
    assert kept.updated([Keywords(open=True)], (), more=False).open
    assert kept.updated((), (), more=True).open


def test_last_value_of_a_keyword_counts() -> None:
    assert Keywords().put("p", A).put("q").put("p", B).entries == (("q", True), ("p", B))
    assert Keywords().put("p").drop("p") == Keywords()


@pytest.mark.parametrize(
    ("value", "true", "none"),
    [
        (Literal(None), False, True),
        (Literal(0), False, False),
        (Literal("x"), True, False),
        (Literal(()), False, False),
        (Anything("config.fp8"), Config("config.fp8"), Config("config.fp8 is None")),
        (Anything(), Config("text"), Config("text is None")),
        (OF_TE, Unclear("text"), Unclear("text is None")),
        (Keywords(), Config("text"), False),
        (Outside("torch.cuda"), Config("text"), False),
        (Reference("transformer_engine.pytorch:Linear"), True, False),
        (Reference("transformer_engine.pytorch:"), True, False),
        (Reference("transformer_engine.pytorch:ep._STARTED"), Holds("transformer_engine.pytorch:ep._STARTED"), False),
        (Reference("transformer_engine.pytorch.ep:HAVE_NCCL"), Holds("transformer_engine.pytorch.ep:HAVE_NCCL"), False),
        (Reference("transformer_engine.pytorch:MHA"), True, False),
    ],
)
def test_truth_and_absence_of_each_kind(value: Value, true: Guard, none: Guard) -> None:
    assert truth_of(single(value), "text") == true
    assert is_none(single(value), "text") == none


def test_code_after_a_flag_of_te_is_reached() -> None:
    """A constant of TE, unlike a function or class, may be false."""
    source = """
        import transformer_engine.pytorch.ep as ep
        def start():
            if ep._STARTED:
                return
            ep.start(1, 2)
    """
    offered = "import transformer_engine.pytorch.ep\n"
    surface = te({"pytorch/__init__.py": offered, "pytorch/ep.py": "_STARTED = False\ndef start(a): ...\n"})
    assert broken(source, surface) == [("possible", "start() takes 1 positional argument but 2 were given")]


def test_truth_of_a_choice_follows_its_guards() -> None:
    choice = gather([(A, Literal(None)), (negate(A), Reference("te:f"))])
    assert truth_of(choice, "f") == negate(A)
    assert is_none(choice, "f") == A
    assert truth_of(UNKNOWN, "f") == Config("f")


OPS: dict[str, Callable[[Version, Version], bool]] = {
    ">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
VERSIONS = st.sampled_from(["1.8.0", "1.9.0.dev0", "1.9.0", "1.9.0+e79d915", "1.10.0"])


@given(st.sampled_from(sorted(OPS)), VERSIONS, VERSIONS, st.booleans())
def test_version_comparison_agrees_with_packaging(op: str, running: str, fixed: str, mirrored: bool) -> None:
    """Also where the literal is on the left."""
    sides: tuple[Value, Value] = (RunningVersion(parsed=True), FixedVersion(fixed))
    values = (Version(running), Version(fixed))
    left, right = sides[::-1] if mirrored else sides
    guard = compare_versions(op, left, right)
    assert guard is not None
    expected = OPS[op](*(values[::-1] if mirrored else values))
    assert Judge(Known(), running).truth(guard) is (Truth.YES if expected else Truth.NO)


@pytest.mark.parametrize("fixed", ["2.4", (2, 4)])
def test_parsed_version_is_compared_with_literals(fixed: object) -> None:
    running = RunningVersion(parsed=True)
    assert compare_versions(">=", running, Literal(fixed)) == TeVersion(">=", "2.4")
    assert compare_versions(">=", running.attribute("release"), Literal(fixed)) == TeVersion(">=", "2.4")
    assert compare_versions(">=", RunningVersion(parsed=False), Literal(fixed)) is None


def test_choice_under_too_large_guards_is_unknown() -> None:
    wide = all_of(*(Config(str(number)) for number in range(MOST_PARTS + 1)))
    assert gather([(wide, Literal(1)), (A, Literal(2))]) == UNKNOWN
    assert gather([(all_of(wide, TeVersion(">=", "2.4")), Literal(1)), (A, Literal(2))]) == single(OF_TE)
    assert gather([(wide, Literal(1))]) == ((wide, Literal(1)),)


def test_unparsed_versions_are_not_compared() -> None:
    fixed = FixedVersion("1.9.0")
    assert compare_versions(">=", RunningVersion(parsed=False), fixed) is None
    assert compare_versions(">=", fixed, fixed) is None
